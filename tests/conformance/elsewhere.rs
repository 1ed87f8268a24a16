//! What holds where calls go through a directory on the target: whose environment it is, and what lies in the directory.

use std::time::Duration;

use serde_json::Value;
use talaria_broker::config::{EnvPolicy, Transport};
use talaria_broker::outcome::Status;

use crate::observe::{self, wait_until};
use crate::rig::Rig;
use crate::tool_host::Watched;
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    a_cell_gets_what_is_normal_there_less_secret_names,
    a_command_gets_it_whole_unless_it_is_scrubbed,
    nothing_of_the_broker_travels_but_what_is_named,
    requests_that_are_forged_or_malformed_are_answered_or_ignored,
    a_polled_directory_does_the_same,
    what_the_target_answers_is_what_the_broker_would,
    a_host_that_alters_answers_is_not_passed_over,
    files_that_a_script_may_not_write_are_an_error,
    nothing_is_left_of_calls_when_their_cell_has_ended,
    nothing_is_left_once_a_session_is_closed,
    a_relay_that_is_killed_is_another_ones_turn,
];

const SECRET: &str = "tr0ub4dor-and-3";

const THERE: [(&str, &str); 4] = [
    ("DATABASE_URL", "postgres://db/app"),
    ("SECRET_KEY", SECRET),
    ("POSTGRES_PASSWORD", "postgres"),
    ("HERMES_OTHER", "there"),
];

fn a_cell_gets_what_is_normal_there_less_secret_names(rig: &Rig) {
    let session = rig.session_with(|options| rig.among(options, THERE));
    let seen: Value = session.value("import json, os; print(json.dumps(dict(os.environ)))");
    assert_eq!(seen["DATABASE_URL"], "postgres://db/app", "{seen}");
    assert_eq!(seen["HERMES_OTHER"], "there", "{seen}");
    for name in ["SECRET_KEY", "POSTGRES_PASSWORD", "HERMES_RPC_SOCKET"] {
        assert!(seen.get(name).is_none(), "{name}");
    }
    // Masked, should a script come by it all the same; an ordinary word is not.
    let printed = session
        .ok("from hermes_tools import terminal\nprint(terminal('echo $SECRET_KEY $POSTGRES_PASSWORD')['output'])");
    assert!(!printed.contains(SECRET) && printed.contains("postgres"), "{printed}");
}

fn a_command_gets_it_whole_unless_it_is_scrubbed(rig: &Rig) {
    let command = "from hermes_tools import terminal\nprint(terminal('echo ${SECRET_KEY:+set} $HERMES_OTHER $PAGER')['output'], end='')";
    let whole = rig.session_with(|options| rig.among(options, THERE));
    assert_eq!(whole.ok(command), "set there cat\n");
    let scrubbed = rig.session_with(|options| {
        rig.among(options, THERE);
        options.env = EnvPolicy::Scrubbed;
    });
    assert_eq!(scrubbed.ok(command), "there cat\n");
}

fn nothing_of_the_broker_travels_but_what_is_named(rig: &Rig) {
    let session = rig.session_with(|options| {
        rig.among(options, [("BOTH", "there")]);
        options.environment = rig.environment([("BOTH", "here"), ("NAMED", "here"), ("OTHER", "here")]);
        options.passes.env_passthrough = vec!["BOTH".into(), "NAMED".into(), "MODAL_TOKEN_SECRET".into()];
        options.passes.set.insert("GIVEN".into(), "given".into());
    });
    let code = "import os\nfrom hermes_tools import terminal\nprint(*[os.environ.get(n) for n in ('BOTH', 'NAMED', 'OTHER', 'GIVEN')])\nprint(terminal('echo $BOTH $NAMED $OTHER $GIVEN')['output'], end='')";
    assert_eq!(session.ok(code), "there here None given\nthere here given\n");
}

/// Speaks to the directory as a script could that has no stub.
const STRANGER: &str = r"
import json, os, time, hermes_tools
rpc = os.environ['HERMES_RPC_DIR']
token, cell = hermes_tools._TOKEN, int(os.environ['HERMES_RPC_CELL'])
def ring():
    try: fd = os.open(os.path.dirname(rpc) + '/bell.r', os.O_WRONLY | os.O_NONBLOCK)
    except OSError: return  # nobody looks just now
    os.write(fd, b'x'); os.close(fd)
def ask(client, body, wait=20):
    name = '%s-1' % client
    os.mkfifo(rpc + '/bell_' + client, 0o600)
    bell = os.open(rpc + '/bell_' + client, os.O_RDWR | os.O_NONBLOCK)
    with open(rpc + '/.aside', 'wb') as file: file.write(body)
    os.rename(rpc + '/.aside', rpc + '/req_' + name)
    ring()
    end = time.monotonic() + wait
    while time.monotonic() < end:
        try:
            with open(rpc + '/res_' + name) as file: answer = file.read()
            os.unlink(rpc + '/res_' + name)
            return json.loads(answer)
        except FileNotFoundError: time.sleep(0.01)
    return None
def call(token, cell, client): return json.dumps([token, cell, 'terminal', {'command': 'touch was-here'}]).encode()
number = 0
for bad in ('', token[:-1], token + '0', '0' * 32, None, 5, [token]):
    number += 1
    answer = ask('%016x' % number, call(bad, cell, number))
    assert answer is not None and 'error' in answer and answer.get('exit_code') is None, (bad, answer)
for body in (b'', b'{', b'[]', b'null', b'\xff\xfe', b'[' * 100000, json.dumps([token, cell + 7, 'terminal', {'command': 'touch was-here'}]).encode()):
    number += 1
    answer = ask('%016x' % number, body)
    assert answer is not None and 'error' in answer, (body[:20], answer)
# Names that are none: ignored.
for name in ('req_', 'req_x', 'req_..', 'req_0000000000000001', 'req_0000000000000001--1', 'req_a\nb-1'):
    with open(rpc + '/' + name, 'wb') as file: file.write(call(token, cell, 1))
os.mkdir(rpc + '/req_00000000000000aa-1')
os.symlink('/etc/passwd', rpc + '/req_00000000000000ab-1')
os.mkfifo(rpc + '/req_00000000000000ac-1')
ring()
time.sleep(1)
print(os.path.exists('was-here'), ask('%016x' % 999, json.dumps([token, cell, 'terminal', {'command': 'echo on'}]).encode())['output'])
";

fn requests_that_are_forged_or_malformed_are_answered_or_ignored(rig: &Rig) {
    let session = rig.session();
    assert_eq!(session.ok(STRANGER), "False on\n\n");
    assert_eq!(
        session.ok("from hermes_tools import terminal\nprint(terminal('echo next')['output'])"),
        "next\n\n"
    );
}

fn a_polled_directory_does_the_same(rig: &Rig) {
    let session = rig.session_with(|options| options.transport = Transport::Polled);
    let outcome = session.cell("from hermes_tools import terminal\nkept = 1\nprint(terminal('echo on')['output'])");
    assert_eq!(
        (outcome.status, outcome.output.as_str()),
        (Status::Success, "on\n\n"),
        "{outcome:#?}"
    );
    assert_eq!(outcome.kernel.unwrap().transport, "polled");
    assert_eq!(session.ok("print(kept)"), "1\n");
    let code = "from concurrent.futures import ThreadPoolExecutor\nfrom hermes_tools import terminal\nwith ThreadPoolExecutor(16) as pool: print(sorted(int(r['output']) for r in pool.map(lambda n: terminal(f'echo {n}'), range(16))))";
    assert_eq!(session.ok(code), format!("{:?}\n", (0..16).collect::<Vec<_>>()));
    let outcome = session.cell_for(1.0, "print('begun', flush=True)\nimport time\ntime.sleep(60)");
    assert_eq!(outcome.status, Status::Timeout, "{outcome:#?}");
    assert!(outcome.output.starts_with("begun\n"), "{outcome:#?}");
}

/// Calls of every kind that the target may answer, also those that fail.
const FILE_CALLS: &str = r#"
import json, os, hermes_tools as h
os.makedirs('tree/sub', exist_ok=True); os.makedirs('empty', exist_ok=True)
for name, text in [('a.txt', 'one\ntwo é\nthree\n'), ('sub/b.txt', 'one'), ('sub/c.bin', 'one\0'), ('.hidden', 'one')]:
    open('tree/' + name, 'w').write(text)
open('long', 'w').write('x' * 3000000); open('many', 'w').write('line\n' * 5000); open('last', 'wb').write(b'a\nb')
calls = [('read_file', a) for a in (
    dict(path='tree/a.txt'), dict(path='tree/a.txt', limit=2), dict(path='tree/a.txt', limit=1, offset=2, raw=True),
    dict(path='long'), dict(path='long', offset='1@1048576') , dict(path='many'), dict(path='many', offset=4999, limit=1),
    dict(path='many', offset=9000), dict(path='last', limit=1), dict(path='last', raw=True), dict(path='tree'),
    dict(path='none'), dict(path='tree/sub/c.bin'), dict(path=''), dict(path='empty'), dict(path='many', limit=5001))]
calls += [('write_file', a) for a in (
    dict(path='w', content=''), dict(path='x/y/z', content='é\r\n'), dict(path='tree', content='x'), dict(path='w/x', content=''))]
calls += [('search_files', a) for a in (
    dict(pattern='one'), dict(pattern='one', limit=1), dict(pattern='one', limit=1, offset=1), dict(pattern='one', offset=70),
    dict(pattern='two', context=1), dict(pattern='line', limit=3, output_mode='count'), dict(pattern='one', output_mode='files_only'),
    dict(pattern='one', output_mode='count'), dict(pattern='*', target='files'), dict(pattern='*.txt', target='files', limit=1),
    dict(pattern='one', path='empty'), dict(pattern='one', path='tree/.hidden'), dict(pattern='one', path='tree', file_glob='*.md'),
    dict(pattern='nowhere', path='tree/sub', file_glob='*.bin'), dict(pattern='(x'), dict(pattern='x', path='none'),
    dict(pattern='one', path='tree/sub/c.bin'), dict(pattern='.', path='tree', file_glob='.hidden'))]
calls += [('patch', a) for a in (
    dict(path='tree/a.txt', old_string='two', new_string='zwei'), dict(path='tree/a.txt', old_string='none', new_string='x'),
    dict(path='none', old_string='a', new_string='b'), dict(patch='*** Begin Patch\n*** Add File: new/n\n+new\n*** Delete File: last\n*** End Patch'))]
for name, arguments in calls:
    text = json.dumps(getattr(h, name)(**arguments), ensure_ascii=False, separators=(',', ':'))
    print(text if len(text) < 1000 else f'{text[:400]}{len(text)}{text[-400:]}')
"#;

/// The broker is told what was found, and takes note of the very answer that the script already has.
fn what_the_target_answers_is_what_the_broker_would(rig: &Rig) {
    let tools = Watched::new(true);
    let session = rig.session_with(|options| options.host = tools.clone());
    let said = session.ok(FILE_CALLS);
    assert!(said.lines().count() > 40, "{said:?}");
    // In this order, for a call begins when the one before was answered.
    for (said, (asked, answered)) in said.lines().zip(tools.calls()) {
        let mut answered: Vec<char> = answered.to_string().chars().collect();
        let length = answered.len();
        if length >= 1000 {
            answered.splice(400..length - 400, length.to_string().chars());
        }
        assert_eq!(said, answered.into_iter().collect::<String>(), "{asked}");
    }
}

/// Whoever wraps the built-in tools decides what a script gets to see.
fn a_host_that_alters_answers_is_not_passed_over(rig: &Rig) {
    let session = rig.session_with(|options| options.host = Watched::new(false));
    rig.file("f", "secret\n");
    let code = "from hermes_tools import *\nprint(read_file('f'), write_file('f', 'x'), search_files('x'), patch('f', 'x', 'y'))";
    let seen = session.ok(code);
    assert!(
        !seen.contains("secret") && seen.matches("withheld").count() == 4,
        "{seen}"
    );
}

/// Calls go through files: a script that may write none cannot call, and is told so.
fn files_that_a_script_may_not_write_are_an_error(rig: &Rig) {
    let session = rig.session();
    session.ok("from hermes_tools import terminal\nimport resource\nprint(terminal('echo on')['output'])");
    let outcome = session
        .cell("resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\nprint(terminal('echo on'))");
    assert!(format!("{outcome:?}").contains("File too large"), "{outcome:#?}");
    assert_eq!(
        session.ok("resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\nprint(terminal('echo on')['output'])"),
        "on\n\n"
    );
}

/// Closing waits for guard and supervisor.
fn nothing_is_left_of_calls_when_their_cell_has_ended(rig: &Rig) {
    let session = rig.session();
    session.ok("
from concurrent.futures import ThreadPoolExecutor
from hermes_tools import read_file, terminal
open('f', 'w').write('x' * 100_000)
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda _: read_file('f'), range(16)))
terminal('true')");
    let left = "import os\nprint(*[name for name in os.listdir(os.environ['HERMES_RPC_DIR']) if not name.startswith('bell_')])";
    assert_eq!(session.ok(left), "\n");
}

fn nothing_is_left_once_a_session_is_closed(rig: &Rig) {
    let all = [Transport::Polled, Transport::Stream];
    for transport in &all[..if rig.target.has_streams() { 2 } else { 1 }] {
        let transport = *transport;
        let session = rig.session_with(|options| options.transport = transport);
        session.ok("import subprocess\nsubprocess.Popen(['sleep', '300'], start_new_session=True)");
        session.close();
        let folders = std::fs::read_dir(rig.tmp()).unwrap().count();
        assert_eq!(folders, 0, "{transport:?}");
        // Of the process that told us of the end nothing is left but its exit.
        let clean = || observe::with_mark(rig.scratch().to_str().unwrap()).is_empty();
        assert!(wait_until(Duration::from_secs(1), clean), "{transport:?}");
    }
}

/// In a container the first one is a child of the first process, with which everything would go.
fn a_relay_that_is_killed_is_another_ones_turn(rig: &Rig) {
    let session = rig.session();
    session.ok("kept = 1\nimport os\nfrom hermes_tools import terminal");
    let kill = "fence = os.path.dirname(os.environ['HERMES_RPC_DIR']) + '/fence'\n\
                os.kill(int(open(fence).read().split()[2]), 9)\nprint(kept, terminal('echo on')['output'])";
    for _ in 0..2 {
        assert_eq!(session.ok(kill), "1 on\n\n");
    }
}
