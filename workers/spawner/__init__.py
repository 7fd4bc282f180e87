"""Starts the tasks of one cell, sees their ends and writes them down, whoever else dies meanwhile.

Started by workers.drivers.process.spawner_client as a program of its own, one for a cell, from the
standard library alone. The cell's folder `work` holds one for each attempt, in it `order.json`:
argv, env, cwd, root, memory_bytes, logs, max_log_bytes, cut_note. In its own folder stand:

    lock      held as long as it lives: one spawner for a cell
    socket    where it is asked
    journal   what was claimed, begun, over and forgotten
    spare     empty folders of tasks that are over, for others

All speak in JSON arrays, one a line. It greets with ["known", [facts, …]], answers each request
[number, verb, uid] but "forget" with ["answer", number, word, …], and tells everybody else ["fact",
facts] of what began and of what is over: when no process of the task is left, those that fled its
session too (it is their reaper). ["said", uid]: there is output. A task that needs no files may be
ordered with [0, "begin", uid, order], without a file: answered by ["begun", uid,
word, …]; its folder is made here, and gone at its end if nothing is in it. Facts: uid, pid, mark,
began_at, is_over, code, ended_at, cpu_seconds, peak_bytes, has_output, is_swept.

A task never runs twice: it is claimed in the journal before its start. When a spawner was killed,
the next one ends its tasks before it greets anybody; their exit status is lost. Nothing of the
journal is forced to disk: with the machine the tasks die as well.
"""
