//! `terminal()`: what passes from one command to the next, and the session's one working directory.

use std::time::Instant;

use crate::rig::{HANG, Rig};
use crate::terminal::{run, shown};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    folder_and_variables_persist,
    however_a_command_ends_its_state_is_kept,
    a_trap_of_the_command_runs_and_costs_nothing,
    values_persist_byte_for_byte,
    a_large_environment_can_be_undone,
    calls_side_by_side_start_from_the_state_when_made,
    a_cell_that_ends_badly_leaves_the_state,
    one_working_directory,
    a_working_directory_that_is_gone,
    the_login_shell_is_asked_first,
    first_calls_side_by_side_wait_for_the_login_shell,
    a_login_shell_that_hangs_is_waited_for_briefly,
    a_login_shell_that_breaks_does_no_harm,
];

fn folder_and_variables_persist(rig: &Rig) {
    std::fs::create_dir_all(rig.work().join("sub")).unwrap();
    let session = rig.session();
    let work = rig.work();
    shown(&session, "cd sub; export A=1 B=2; C=3");
    assert_eq!(
        shown(&session, "pwd; echo $A $B ${C-unset}; unset A; export B=4; cd .."),
        format!("{}/sub\n1 2 unset\n", work.display())
    );
    assert_eq!(
        shown(&session, "echo ${A-unset} $B; sh -c 'echo $B'; cd -"),
        format!("unset 4\n4\n{}/sub\n", work.display())
    );
    assert_eq!(shown(&session, "cd; pwd"), format!("{}\n", rig.home().display()));
    assert_eq!(shown(&session, "unset HOME PATH; echo ok"), "ok\n");
    assert_eq!(shown(&session, "echo ${HOME-unset}"), "unset\n");
}

fn however_a_command_ends_its_state_is_kept(rig: &Rig) {
    let session = rig.session();
    for (number, (end, code)) in [
        ("exit 3", 3),
        ("false", 1),
        ("no-such-command-here", 127),
        ("set -e; false; exit 9", 1),
        ("set -u; echo $NOT_SET_AT_ALL; exit 9", 127),
        ("eval 'if then'", 2),
        ("set -o posix; exit 4", 4),
        ("set -C; exit 5", 5),
        ("f() { cd /usr; exit 6; }; f", 6),
        ("printf() { :; }; pwd() { :; }; export() { :; }; exit 7", 7),
        ("exec 2>/dev/null; exit 8", 8),
        ("kill -TERM $$", 143),
        ("{ exit 9; }", 9),
    ]
    .into_iter()
    .enumerate()
    {
        shown(&session, "cd /");
        let result = run(&session, &format!("cd /usr; export N={number}; {end}"));
        assert_eq!(result["exit_code"], code, "{end}: {result}");
        assert_eq!(shown(&session, "pwd; echo $N"), format!("/usr\n{number}\n"), "{end}");
    }
    for lost in [
        "cd /; export N=no; exec true",
        "cd /; export N=no; kill -9 $$",
        "if then",
        "(cd /; export N=no; exit 3)",
    ] {
        run(&session, lost);
        assert_eq!(shown(&session, "pwd; echo $N"), "/usr\n12\n", "{lost}");
    }
    let code = "from hermes_tools import terminal\nprint(terminal('cd /; export N=late; sleep 300', timeout=0.5)['exit_code'])";
    assert_eq!(session.ok(code), "124\n");
    assert_eq!(shown(&session, "pwd; echo $N"), "/\nlate\n");
}

fn a_trap_of_the_command_runs_and_costs_nothing(rig: &Rig) {
    let session = rig.session();
    for (command, output) in [
        ("trap 'echo bye' EXIT; cd /usr", "bye\n"),
        ("trap 'echo bye' EXIT; cd /usr; exit 0", "bye\n"),
        (
            "trap 'echo bye' EXIT INT TERM; cd /usr; (cd /; exit 3); exit 0",
            "bye\n",
        ),
        ("trap - EXIT; cd /usr", ""),
    ] {
        shown(&session, "cd /");
        assert_eq!(shown(&session, command), output);
        assert_eq!(shown(&session, "pwd"), "/usr\n", "{command}");
    }
}

fn values_persist_byte_for_byte(rig: &Rig) {
    let session = rig.session();
    let code = r##"
import json
from hermes_tools import terminal, shell_quote
values = ["", " ", "a b", "it's", 'say "hi"', "$HOME `x` $(y) \\ \\n", "line\nline\n", "\t\x01\x1b[0m\x7f", "größe 🦀", "!x", "=", "x" * 100_000,
          "__talaria_state", "a\rb", "*", "~", "#no"]
for value in values:
    terminal("export V=" + shell_quote(value))
    terminal("true")
    result = terminal("python3 -c 'import os, sys; sys.stdout.write(ascii(os.environ[\"V\"]))'")
    if result["output"] != ascii(value):
        print(ascii(value)[:100], result["output"][:100])
print("compared", len(values))
"##;
    let session_of_many = |code: &str| {
        let mut cell = talaria_broker::session::Cell::new(code);
        cell.limits.max_tool_calls = Some(100);
        session.run(cell).output
    };
    assert_eq!(session_of_many(code), "compared 17\n");
}

fn a_large_environment_can_be_undone(rig: &Rig) {
    let session = rig.session();
    // More than a process may be given: only what the shell does by itself works until it is unset.
    shown(
        &session,
        "export BIG=$(head -c 3000000 /dev/zero | tr '\\0' x); cd /usr",
    );
    assert_eq!(shown(&session, "echo ${#BIG}; pwd"), "3000000\n/usr\n");
    assert_ne!(run(&session, "ls")["exit_code"], 0);
    shown(&session, "unset BIG");
    assert_eq!(shown(&session, "echo ${BIG-unset}; ls -d ."), "unset\n.\n");
    let many = "for i in $(seq 2000); do export \"V$i=value number $i\"; done";
    shown(&session, many);
    assert_eq!(
        shown(&session, "echo $V1 $V2000; env | grep -c ^V"),
        "value number 1 value number 2000\n2000\n"
    );
}

fn calls_side_by_side_start_from_the_state_when_made(rig: &Rig) {
    let session = rig.session();
    let code = r#"
import threading, time
from hermes_tools import terminal
terminal("export N=start")
terminal("mkdir -p box; cd box")
def move():
    results["move"] = terminal('cd /usr; export N=moved; touch "$OLDPWD/moved"; until [ -e "$OLDPWD/seen" ]; do sleep 0.05; done; sleep 1.5')
results = {}
mover = threading.Thread(target=move); mover.start()
while terminal("test -e moved")["exit_code"]: time.sleep(0.05)
seen = terminal("pwd; echo $N; touch seen")
mover.join()
print(seen["output"].split("/")[-1], end="")
print(terminal("pwd; echo $N")["output"], end="")
"#;
    assert_eq!(session.ok(code), "box\nstart\n/usr\nmoved\n");
}

fn a_cell_that_ends_badly_leaves_the_state(rig: &Rig) {
    let session = rig.session();
    shown(&session, "cd /usr; export N=1");
    for code in [
        "raise ValueError('x')",
        "import os; os._exit(3)",
        "import sys; sys.exit('no')",
    ] {
        session.cell(code);
        assert_eq!(shown(&session, "pwd; echo $N"), "/usr\n1\n", "{code}");
    }
}

fn one_working_directory(rig: &Rig) {
    rig.file("sub/inner.txt", "inner");
    rig.file("outer.txt", "outer");
    let session = rig.session();
    let work = rig.work().display().to_string();
    // Together at first.
    let code = "import os\nfrom hermes_tools import *\nprint(os.getcwd(), terminal('pwd')['output'].strip(), read_file('outer.txt')['content'])";
    assert_eq!(session.ok(code), format!("{work} {work} 1|outer\n"));
    // A cd moves terminal and files, not the kernel.
    let code =
        "terminal('cd sub')\nprint(read_file('inner.txt')['content'], terminal('pwd')['output'].strip(), os.getcwd())";
    assert_eq!(session.ok(code), format!("1|inner {work}/sub {work}\n"));
    assert_eq!(
        session.ok("write_file('made.txt', 'x'); print(os.path.exists('sub/made.txt'))"),
        "True\n"
    );
    // os.chdir moves the kernel alone.
    let code =
        "os.chdir('/usr')\nprint(os.getcwd(), terminal('pwd')['output'].strip(), 'error' in read_file('outer.txt'))";
    assert_eq!(session.ok(code), format!("/usr {work}/sub True\n"));
    assert_eq!(session.session.working_directory(), Some(rig.work().join("sub")));
    // A new kernel starts where the session is.
    crate::rig::runtime().block_on(session.session.reset());
    assert_eq!(session.ok("import os; print(os.getcwd())"), format!("{work}/sub\n"));
}

fn a_working_directory_that_is_gone(rig: &Rig) {
    std::fs::create_dir(rig.work().join("gone")).unwrap();
    let session = rig.session();
    shown(&session, "cd gone");
    std::fs::remove_dir(rig.work().join("gone")).unwrap();
    let work = rig.work().display().to_string();
    let code = "import os\nfrom hermes_tools import *\nos.makedirs('gone')\nterminal('cd gone; rmdir ../gone')\nr = terminal('pwd')\nprint(r['exit_code'], 'gone' in r['error'], 'cd FOLDER' in r['error'])\nprint(terminal('cd ..; pwd', workdir='/usr')['output'], terminal('pwd')['output'], end='')";
    let outcome = session.cell(code);
    assert!(outcome.notice.as_deref().unwrap_or("").contains("gone"), "{outcome:#?}");
    assert_eq!(outcome.output, format!("-1 True True\n/\n /\n"), "{work} {outcome:#?}");
}

fn the_login_shell_is_asked_first(rig: &Rig) {
    let profile = "echo noise; echo noise >&2\nexport FROM_LOGIN='a b' MY_API_KEY=secret HERMES_OTHER=x PATH=\"$PATH:/from/login\"\ncd /usr\n";
    std::fs::write(rig.home().join(".bash_profile"), profile).unwrap();
    let session = rig.session_with(|options| {
        rig.among(options, [("SHELL", "/bin/bash"), ("BROKER_SIDE", "kept")]);
    });
    let command =
        "echo $FROM_LOGIN $BROKER_SIDE ${MY_API_KEY-withheld} ${HERMES_OTHER-withheld}; echo ${PATH##*:}; pwd";
    assert_eq!(
        shown(&session, command),
        // Elsewhere it is the target's own, and whole.
        format!(
            "a b kept {}\n/from/login\n{}\n",
            if rig.target.is_here() {
                "withheld withheld"
            } else {
                "secret x"
            },
            rig.work().display()
        )
    );
}

fn first_calls_side_by_side_wait_for_the_login_shell(rig: &Rig) {
    std::fs::write(
        rig.home().join(".profile"),
        "sleep 0.5; echo x >>$HOME/asked; export FROM_LOGIN=yes\n",
    )
    .unwrap();
    let session = rig.session();
    let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import terminal\n\
                with ThreadPoolExecutor(8) as pool:\n    print({r['output'] for r in pool.map(terminal, ['echo $FROM_LOGIN'] * 8)})";
    assert_eq!(session.ok(code), "{'yes\\n'}\n");
    assert_eq!(std::fs::read_to_string(rig.home().join("asked")).unwrap(), "x\n");
}

fn a_login_shell_that_hangs_is_waited_for_briefly(rig: &Rig) {
    std::fs::write(
        rig.home().join(".profile"),
        "trap '' TERM\nwhile :; do sleep 60; done\n",
    )
    .unwrap();
    let session = rig.session();
    let began = Instant::now();
    // Given up at the limit, not after the grace as well.
    let code = "from hermes_tools import terminal\nprint(terminal('echo on; grep -a -l \"[w]hile\" /proc/[0-9]*/cmdline | wc -l')['output'])\nimport time; print(time.monotonic() - began < 9)";
    let code = format!("import time; began = time.monotonic()\n{code}");
    let printed = session.ok(&code);
    assert!(printed.starts_with("on\n") && printed.ends_with("True\n"), "{printed}");
    assert!(began.elapsed() < HANG);
    assert_eq!(shown(&session, "echo on"), "on\n");
}

fn a_login_shell_that_breaks_does_no_harm(rig: &Rig) {
    for profile in [
        "exit 3\n",
        "exec true\n",
        "kill -9 $$\n",
        "if then\n",
        "exec >/dev/null; cat /dev/zero | head -c 1000000\n",
        "unset PATH\n",
        "export PATH=\n",
    ] {
        std::fs::write(rig.home().join(".profile"), profile).unwrap();
        let session = rig.session_with(|options| {
            rig.among(options, [("BROKER_SIDE", "kept")]);
        });
        assert_eq!(shown(&session, "echo $BROKER_SIDE; ls -d ."), "kept\n.\n", "{profile}");
        session.close();
    }
}
