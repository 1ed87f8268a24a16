"""The life of a session behind a directory: how it begins, and that nothing is left of it however it ends."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest
from directory_host import Host, busy, find, holder, wait_until
from target_side import load


def nothing_is_left(session):
    wait_until(lambda: not session.processes())
    wait_until(lambda: not os.path.exists(session.folder) and not os.path.exists(session.spool))


# --- the start -------------------------------------------------------------------------


def refused(session):
    session.pump(lambda: session.refused)
    session.pump(lambda: session.link.ended)
    assert session.link.process.wait(10) == 1
    (key, text) = session.refused[0]
    assert key == b""
    return text


def test_a_working_directory_that_is_not_there(host):
    text = refused(host(cwd=b"/nowhere/at/all"))
    assert "/nowhere/at/all cannot be entered: no such file or directory" in text


def test_the_same_session_twice(host, tmp_path):
    session = host().begun()
    again = Host(tmp_path)
    again.entries = session.entries
    assert "exists already" in refused(again.start())
    again.close()
    session.end()


def test_places_are_tried_in_turn(host, tmp_path):
    full = tmp_path / "file"
    full.write_text("")
    session = host(base=full)
    session.begun()
    assert os.path.isdir(session.folder)
    assert not session.folder.startswith(str(full))
    session.end()


def test_what_is_made_is_private(host):
    session = host().begun()
    for folder, _, files in os.walk(session.folder):
        assert stat.S_IMODE(os.lstat(folder).st_mode) == 0o700
        for name in files:
            assert stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode) == 0o600, name
    session.end()


def test_a_private_working_folder_goes_with_the_session(host):
    session = host(work=b"1").begun()
    work = session.facts["cwd"]
    assert stat.S_IMODE(os.lstat(work).st_mode) == 0o700
    session.end()
    assert not os.path.exists(work)


def test_home_of_a_user_that_the_account_database_does_not_know(tmp_path):
    if os.geteuid():
        pytest.skip("only root may become another user")
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder != base and not os.stat(folder).st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o111)
    code = (
        "import os,sys;os.environ.pop('HOME',None);os.setgid(54321);os.setuid(54321);os.execv(sys.argv[1],sys.argv[1:])"
    )
    session = Host(base, python="/usr/bin/python3", prefix=[sys.executable, "-c", code], cwd=os.fsencode(base))
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("no interpreter that every user may run")
    session.start().begun()
    assert (session.facts["home"], session.facts["user"], session.facts["uid"]) == (str(base), "", 54321)
    session.end()


def test_the_interpreter_of_the_project_is_preferred_if_it_works(host, tmp_path):
    project = tmp_path / "project"
    scripts = project / ".venv" / "bin"
    scripts.mkdir(parents=True)
    broken = tmp_path / "broken" / "bin"
    broken.mkdir(parents=True)
    (broken / "python").write_text("#!/bin/sh\necho no such luck; exit 3\n")
    (broken / "python").chmod(0o755)
    old = tmp_path / "old" / "bin"
    old.mkdir(parents=True)
    (old / "python").write_text("#!/bin/sh\necho talaria 3.6.15\n")
    (old / "python").chmod(0o755)
    (scripts / "python").symlink_to(sys.executable)
    session = Host(tmp_path, cwd=os.fsencode(project), interpreters=b"project")
    environment = dict(os.environ, VIRTUAL_ENV=str(broken.parent), CONDA_PREFIX=str(old.parent))
    session.start(env=environment).begun()
    assert session.facts["python"] == str(scripts / "python")
    assert session.facts["version"] == "%d.%d.%d" % sys.version_info[:3]
    assert session.facts["rejected"] == [
        [str(broken / "python"), "exited with 3: no such luck"],
        [str(old / "python"), "version 3.6.15"],
    ]
    session.end()


def test_an_environment_larger_than_a_frame(host, tmp_path):
    session = Host(tmp_path)
    odd = os.fsencode(os.environ["PATH"])
    environment = {b"PATH": odd, b"ODD": b'\xff "\\\n\x01', b"LARGE": b"x" * 100_000}
    session.start(env=environment).begun()
    assert session.facts["environment"]["LARGE"] == "x" * 100_000
    assert session.facts["environment"]["ODD"] == '\udcff "\\\n\x01'
    assert sorted(session.facts["environment"]) == ["LARGE", "ODD", "PATH"]
    session.end()


# --- the end ---------------------------------------------------------------------------


def test_a_closed_session_leaves_nothing(host):
    session = busy(host())
    session.command(b"Z")
    session.pump(lambda: session.gone)
    nothing_is_left(session)


def test_a_lease_that_runs_out(host):
    session = busy(host(lease=1.5))
    session.drop()
    nothing_is_left(session)
    session.relink()
    session.pump(lambda: session.gone)
    assert "gone" in session.gone


def test_a_lease_runs_out_under_a_relay_whose_broker_is_silent(host):
    session = busy(host(lease=1.5))
    wait_until(lambda: not session.processes())
    session.renewing = False
    nothing_is_left(session)


def test_the_first_allowance(host):
    session = host(first_lease=1.0)
    session.renewing = False
    session.begun()
    session.spool = session.disk()
    session.drop()
    nothing_is_left(session)


@pytest.mark.parametrize("how", ["hung up", "killed"])
def test_a_start_that_is_given_up_leaves_nothing(host, how):
    session = host()
    session.renewing = False
    session.resume = lambda: None
    session.begun()
    session.spool = session.disk()
    if how == "killed":
        os.kill(holder(session.folder, 2), signal.SIGKILL)
    else:
        session.link.process.stdin.close()
    session.link.process.wait(10)
    nothing_is_left(session)


def test_the_last_relay_stays_until_nothing_is_left(host):
    session = busy(host())
    session.command(b"Z")
    session.pump(lambda: session.link.ended)
    assert session.gone == "it was closed"
    assert not os.path.exists(session.folder) and not os.path.exists(session.spool)
    assert session.link.process.wait(10) == 0
    assert not session.processes()


def test_a_lease_that_is_renewed_does_not_run_out(host):
    session = busy(host(lease=1.5))
    until = time.monotonic() + 4
    session.pump(lambda: time.monotonic() > until)
    session.command(b"X", b"2", b"now")
    session.pump(lambda: session.done(2))
    assert session.done(2)[1] == b"interrupted"
    session.end()


def test_time_in_which_guard_and_supervisor_stood_still_is_not_charged(host):
    session = busy(host(lease=2.0))
    pids = [holder(session.folder, byte) for byte in (0, 1, 2)]
    session.renewing = False
    # As a pause or a suspended machine does it: all of it stands still, and whoever is woken is stopped again.
    until = time.monotonic() + 3
    while time.monotonic() < until:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.01)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    session.renewing = True
    until = time.monotonic() + 1
    session.pump(lambda: time.monotonic() > until)
    session.command(b"X", b"2", b"now")
    session.pump(lambda: session.done(2))
    session.end()


def waits(session, seconds):
    until = time.monotonic() + seconds
    session.pump(lambda: time.monotonic() > until)


def test_a_clock_that_stands_still_counts_nothing(host):
    session = host().ready_kernel()
    session.cell(1, "import time\ntime.sleep(1.2)", timeout=0.8)
    session.command(b"P", b"1", b"60")
    session.command(b"P", b"2", b"60")  # no such cell
    waits(session, 0.5)
    session.drop()  # the hold is the question's, and not the link's
    session.relink()
    waits(session, 0.5)
    session.command(b"P", b"1", b"0")
    session.pump(lambda: session.done(1))
    fields = session.done(1)
    assert fields[1] == b"done" and float(fields[4]) < 0.8, fields
    # Afterwards it counts again, also in the same cell.
    session.cell(2, "import time\ntime.sleep(60)", timeout=0.8)
    session.command(b"P", b"2", b"60")
    session.command(b"P", b"2", b"60")
    session.command(b"P", b"2", b"0")
    session.pump(lambda: session.done(2))
    assert session.done(2)[1] == b"timeout"
    assert float(session.done(2)[4]) >= 0.8
    session.end()


def test_a_clock_does_not_stand_still_for_ever(host):
    session = host().ready_kernel()
    session.cell(1, "import time\ntime.sleep(60)", timeout=0.5)
    session.command(b"P", b"1", b"0.5")
    session.pump(lambda: session.done(1))
    assert session.done(1)[1] == b"timeout"
    session.end()


def test_a_clock_that_stands_still_holds_up_no_interrupt(host):
    session = host().ready_kernel()
    session.cell(1, "import time\ntime.sleep(60)", timeout=5.0)
    session.command(b"P", b"1", b"60")
    session.command(b"X", b"1", b"now")
    session.pump(lambda: session.done(1))
    assert session.done(1)[1] == b"interrupted"
    session.end()


@pytest.mark.parametrize("role", ["supervisor", "guard"])
def test_whoever_of_ours_is_killed_the_other_cleans_up(host, role):
    session = busy(host())
    os.kill(holder(session.folder, ["supervisor", "guard"].index(role)), signal.SIGKILL)
    session.pump(lambda: session.gone)
    assert "killed" in session.gone.lower()
    nothing_is_left(session)


def test_both_are_killed_and_the_next_link_cleans_up(host):
    session = busy(host())
    for byte in (1, 0):
        os.kill(holder(session.folder, byte), signal.SIGKILL)
    session.drop()
    session.relink()
    session.pump(lambda: session.gone)
    assert "were killed" in session.gone
    nothing_is_left(session)


def test_both_are_killed_under_a_link_that_stays(host):
    session = busy(host())
    for byte in (1, 0):
        os.kill(holder(session.folder, byte), signal.SIGKILL)
    session.pump(lambda: session.gone, 60)
    nothing_is_left(session)


def test_a_supervisor_that_is_stopped_is_woken(host):
    session = busy(host())
    os.kill(holder(session.folder, 0), signal.SIGSTOP)
    session.command(b"X", b"2", b"now")
    session.pump(lambda: session.done(2))
    session.end()


def test_guard_and_supervisor_are_stopped_and_the_relay_wakes_them(host):
    session = busy(host())
    for byte in (1, 0):
        os.kill(holder(session.folder, byte), signal.SIGSTOP)
    session.command(b"X", b"2", b"now")
    session.pump(lambda: session.done(2))
    session.end()


def test_guard_and_supervisor_are_stopped_and_the_broker_goes(host):
    session = busy(host(lease=1.5))
    session.renewing = False
    for byte in (1, 0):
        os.kill(holder(session.folder, byte), signal.SIGSTOP)
    session.link.process.stdin.close()
    session.link.process.wait(10)
    nothing_is_left(session)


def test_all_of_ours_are_stopped_and_the_broker_goes(host):
    session = busy(host(lease=1.5))
    session.renewing = False
    for byte in (2, 1, 0):
        os.kill(holder(session.folder, byte), signal.SIGSTOP)
    session.link.process.stdin.close()
    session.link.process.wait(10)
    nothing_is_left(session)


def test_a_guard_that_is_stopped_does_not_keep_the_session_alive(host):
    session = busy(host(lease=1.5))
    os.kill(holder(session.folder, 1), signal.SIGSTOP)
    session.drop()
    nothing_is_left(session)


def test_signals_do_not_end_guard_and_supervisor(host):
    session = host().ready_kernel()
    for byte in (0, 1):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE):
            os.kill(holder(session.folder, byte), number)
    assert session.run(1, "print('here')") == "here\n"
    session.end()


def left_over(base, name, age=3600.0, **more):
    """What a session has left whose processes were killed with their container."""
    path = base / name
    path.mkdir(mode=0o700)
    for one in ("lock", *more.get("files", ("lease",))):
        (path / one).write_text("")
        os.utime(path / one, (time.time() - age,) * 2)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_what_sessions_left_long_ago_is_removed_and_nothing_else(host, tmp_path):
    import fcntl

    base = tmp_path / "base"
    base.mkdir(mode=0o700)
    old, disk = left_over(base, "talaria-" + "0" * 32), left_over(base, "talaria-" + "1" * 32 + "-disk", files=())
    kept = [
        left_over(base, "talaria-" + "2" * 32, age=300.0),
        left_over(base, "talaria-" + "3" * 31),
        left_over(base, "talaria-notes"),
        left_over(base, "talaria-" + "4" * 32 + "-disk", age=300.0),
    ]
    (base / ("talaria-" + "5" * 32)).symlink_to(tmp_path)
    held = left_over(base, "talaria-" + "6" * 32)
    without_lock = left_over(base, "talaria-" + "7" * 32)
    (without_lock / "lock").unlink()
    os.utime(without_lock, (0, 0))
    kept += [held, without_lock, base / ("talaria-" + "5" * 32)]
    if os.geteuid() == 0:
        kept.append(left_over(base, "talaria-" + "8" * 32))
        os.chown(kept[-1], 54321, 54321)
    with open(held / "lock", "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, 2)
        session = host(base=base).ready_kernel()
        wait_until(lambda: not old.exists() and not disk.exists())
        # What is removed after them has its turn too.
        time.sleep(0.3)
        assert [path for path in kept if not os.path.lexists(path)] == []
        # The guard still holds its own locks.
        assert holder(session.folder, 1) and holder(session.folder, 0)
        session.end()
        assert [path for path in kept if not os.path.lexists(path)] == []


def test_a_link_to_what_is_anothers_is_not_followed(tmp_path):
    fence = load("fence")
    base = os.fsencode(tmp_path)
    dead, own = base + b"/talaria-" + b"0" * 32, b"-disk"
    another = base + b"/talaria-" + b"1" * 32 + b"-disk"
    for disk, is_removed in ((dead + own, True), (another, False), (base + b"/notes", False)):
        os.mkdir(dead)
        os.mkdir(disk)
        os.symlink(disk, dead + b"/disk")
        fence.sweep(dead)
        assert not os.path.lexists(dead)
        assert os.path.isdir(disk) != is_removed, disk


def test_nothing_runs_once_the_end_was_said(host, tmp_path):
    session = host(lease=1.5).ready_kernel()
    session.spool = session.disk()
    ticks, late = tmp_path / "ticks", tmp_path / "late"
    source = "import time\nwhile True:\n    open(%r, 'a').write('.')\n    time.sleep(0.01)"
    session.cell(1, source % str(ticks))
    session.pump(lambda: ticks.exists())
    session.drop()
    # Both come after the broker's time: a link that has a command, and a command that only lies there.
    wait_until(lambda: os.path.exists(session.folder + "/ended") or not os.path.exists(session.folder))
    session.relink()
    session.cell(2, "open(%r, 'w').close()" % str(late))
    session.pump(lambda: session.gone)
    nothing_is_left(session)
    written = ticks.stat().st_size
    time.sleep(0.3)
    assert ticks.stat().st_size == written
    assert not late.exists()


# --- a full disk -----------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """A file system of a few MiB, alone for D and what is large."""
    if os.geteuid():
        pytest.skip("only root may mount")
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place):
    with open(place / "filler", "wb") as file:
        try:
            while True:
                os.write(file.fileno(), b"\0" * 4096)
        except OSError:
            pass


def on_small(small):
    session = Host(small).start(env={**os.environ, "TMPDIR": str(small)})
    session.ready_kernel()
    # Nothing lies elsewhere.
    disk = session.disk()
    if not disk.startswith(str(small)):
        os.unlink(session.folder + "/disk")
        os.mkdir(session.folder + "/disk", 0o700)
        shutil.rmtree(disk)
    return session


def test_with_the_disk_full_a_cell_ends_with_a_record(small):
    session = on_small(small)
    session.run(1, "print('before')")
    session.cell(2, "import time, sys\nprint('begun', flush=True)\ntime.sleep(1)\nprint('z' * 500000)")
    session.pump(lambda: b"begun" in session.output.get(2, b""))
    fill(small)
    session.pump(lambda: session.done(2))
    record = session.done(2)
    shown = len(session.output[2])
    assert record[1] == b"done"
    assert shown + int(record[5]) == 500007
    assert record[6][-10:] == b"z" * 9 + b"\n"
    os.unlink(small / "filler")
    assert session.run(3, "print('room again')") == "room again\n"
    session.end()


def test_with_the_disk_full_a_cell_can_be_stopped_and_a_kernel_ended(small):
    session = on_small(small)
    session.cell(1, "import time\nprint('begun', flush=True)\ntime.sleep(600)")
    session.pump(lambda: b"begun" in session.output.get(1, b""))
    fill(small)
    session.command(b"X", b"1", b"now")
    session.pump(lambda: session.done(1))
    assert session.done(1)[1] == b"interrupted"
    # What is longer is refused until there is room.
    session.start_kernel(generation=2)
    session.pump(lambda: session.refused)
    os.unlink(small / "filler")
    session.drop()
    session.relink()
    session.pump(lambda: session.events[-1][0] == b"R")
    fill(small)
    session.command(b"E")
    session.pump(lambda: session.events[-1][0] == b"L")
    os.unlink(small / "filler")
    session.end()


def test_with_the_disk_full_links_are_made_and_sessions_end(small):
    session = on_small(small)
    fill(small)
    session.drop()
    session.relink()
    session.begun()
    session.cell(1, "print(1)")
    session.pump(lambda: session.refused or session.done(1))
    session.refused.clear()
    os.kill(holder(session.folder, 0), signal.SIGKILL)
    session.pump(lambda: session.gone)
    assert "killed" in session.gone
    wait_until(lambda: not os.path.exists(session.folder))
    session.close()


# --- PID 1 -----------------------------------------------------------------------------


def namespace():
    """What makes the next program PID 1, where that can be done."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        done = subprocess.run([*command, "true"], stderr=subprocess.DEVNULL)
    except OSError:
        return None
    return None if done.returncode else command


def test_as_pid_1_the_guard_reaps_and_ends_with_the_session(tmp_path):
    prefix = namespace()
    if prefix is None:
        pytest.skip("no namespace can be made here")
    session = Host(tmp_path, prefix=prefix).start()
    session.ready_kernel()
    session.prefix = []
    source = (
        "import subprocess, os, time\n"
        "for _ in range(5): subprocess.run(['sh', '-c', '(sleep 0.1 &) ; exit 0'])\n"
        "time.sleep(0.8)\n"
        "pids = [p for p in os.listdir('/proc') if p.isdigit()]\n"
        "states = [open('/proc/%s/stat' % p).read().rsplit(')', 1)[1].split()[0] for p in pids]\n"
        "print(states.count('Z'), open('/proc/1/stat').read().split()[1])"
    )
    assert session.run(1, source).startswith("0 (python")
    session.command(b"Z")
    session.pump(lambda: session.gone)
    assert session.link.process.wait(20) == 0
    assert not os.path.exists(session.folder)
    session.close()


def test_as_pid_1_a_signal_ends_the_session(tmp_path):
    prefix = namespace()
    if prefix is None:
        pytest.skip("no namespace can be made here")
    session = Host(tmp_path, prefix=prefix).start()
    session.ready_kernel()
    session.spool = session.disk()
    session.cell(1, "import time\nprint('x')\ntime.sleep(600)")
    session.pump(lambda: session.output.get(1))
    inside = [pid for pid in find(session.session) if b"NSpid" in open("/proc/%d/status" % pid, "rb").read()]
    (first,) = [
        pid for pid in children_of(session.link.process.pid) if "\t1\n" in open("/proc/%d/status" % pid).read()
    ] or inside[:1]
    os.kill(first, signal.SIGTERM)
    session.pump(lambda: session.gone)
    assert session.gone == "the container was asked to stop"
    assert session.link.process.wait(20) == 0
    nothing_is_left(session)
    session.close()


def children_of(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
        return [int(word) for word in file.read().split()]
