"""Jobs of identical tasks, which share results by the cache."""

from random import Random

from tests.simulation.jobs import Submitted, fails, succeeds, succeeds_at_last


def identical(rng: Random, name: str) -> list[Submitted]:
    """Two to five jobs of one key. Most of them serialize, and some replace the entry."""
    draw = rng.choice([succeeds, succeeds, succeeds_at_last, fails])
    first = draw(rng, f"{name}-0")
    is_serial = rng.random() < 0.7
    jobs = []
    for number in range(rng.randint(2, 5)):
        group = dict(first.body["groups"][0], replicas=rng.randint(1, 3))
        body = {**first.body, "name": f"{name}-{number}", "groups": [group]}
        body["cache"] = {
            "enabled": True,
            "key": name,
            "serialize": is_serial,
            "overwrite": rng.random() < 0.15,
        }
        job = Submitted(rng.uniform(0.0, 30.0), body, first.expected, results=first.results)
        job.at = rng.choice([0.0, job.at])
        if draw is succeeds_at_last:
            # Programs fail by the number of the attempt, which the cache does not count.
            job.body["retries"] = {"failure": 5}
        jobs.append(job)
    return sorted(jobs, key=lambda job: job.at)
