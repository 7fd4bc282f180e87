"""Start the tasks of one cell and record their ends, even if the cell is killed meanwhile.

workers.drivers.process.spawner_client starts the spawner as a separate program, one for a cell. It
uses the standard library only. The cell's folder `work` holds one folder for each attempt, with
`order.json`: argv, env, cwd, root, stdin, memory_bytes, logs, max_log_bytes, cut_note. The
spawner's own folder has:

    lock      held while it runs: one spawner for a cell
    socket    for requests
    journal   tasks claimed, begun, ended and forgotten
    spare     empty folders of ended tasks, for reuse

Messages are JSON arrays, one per line:

* greeting: ["known", [facts, …]]
* request: [number, verb, uid], answered by ["answer", number, word, …], except "forget"
* request for a task that needs no files: [0, "begin", uid, order], answered by
  ["begun", uid, word, …]. The spawner creates its folder, and removes it at the end if it is empty.
* to all other connections: ["fact", facts] when a task has begun or ended. A task has ended when
  none of its processes is left, including those that left its session (the spawner is their
  reaper).
* to all connections: ["output", uid] at the first output of a task

Facts: uid, pid, mark (start of the process in kernel ticks), began_at, is_over, code, ended_at,
cpu_seconds, peak_bytes, has_output, is_swept.

A task never runs twice: it is claimed in the journal before its start. After a kill of the spawner,
the next one kills its tasks before it answers; their exit status is lost. The journal is not synced
to disk: when the machine fails, the tasks end as well.
"""
