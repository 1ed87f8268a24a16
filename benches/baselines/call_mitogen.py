"""A number goes to a function on the host and comes back, by a mitogen call over SSH: PORT, KEY, KNOWN_HOSTS, PYTHON.

For each line with a count on stdin, prints that many times in nanoseconds.
"""

import sys
import time

import mitogen.core  # type: ignore[import-not-found]
import mitogen.master  # type: ignore[import-not-found]
import mitogen.utils  # type: ignore[import-not-found]


def same(number: int) -> int:
    return number


@mitogen.main()  # type: ignore[misc]
def main(router: "mitogen.master.Router") -> None:
    port, key, known_hosts, python = sys.argv[1:]
    host = router.ssh(
        hostname="127.0.0.1",
        port=port,
        identity_file=key,
        python_path=python,
        check_host_keys="enforce",
        ssh_args=["-o", "UserKnownHostsFile=" + known_hosts],
    )
    for line in sys.stdin:
        times = []
        for number in range(int(line)):
            began = time.perf_counter_ns()
            assert host.call(same, number) == number
            times.append(time.perf_counter_ns() - began)
        print(*times, flush=True)
