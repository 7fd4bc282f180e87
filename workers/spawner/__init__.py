"""Start the tasks of one cell and record their ends, even if the cell dies meanwhile.

workers.drivers.process.spawner_client starts it as a separate program, one for a cell. It uses the
standard library only. The cell's folder `work` holds one for each attempt, in it `order.json`:
argv, env, cwd, root, memory_bytes, logs, max_log_bytes, cut_note. Its own folder has:

    lock      held while it runs: one spawner for a cell
    socket    for requests
    journal   tasks claimed, begun, ended and forgotten
    spare     empty folders of ended tasks, for reuse

Messages are JSON arrays, one a line. It begins with ["known", [facts, …]], answers each request
[number, verb, uid] except "forget" with ["answer", number, word, …], and sends all other
connections ["fact", facts] when a task began or ended: when no process of the task is left,
including those that left its session (it is their reaper). ["output", uid]: there is output. A task
that needs no files may be ordered with [0, "begin", uid, order], without a file: answered by
["begun", uid, word, …]; its folder is created here, and removed at its end if it is empty. Facts:
uid, pid, mark, began_at, is_over, code, ended_at, cpu_seconds, peak_bytes, has_output, is_swept.

A task never runs twice: it is claimed in the journal before its start. When a spawner was killed,
the next one ends its tasks before it answers; their exit status is lost. The journal is not
forced to disk: when the machine dies, the tasks die as well.
"""
