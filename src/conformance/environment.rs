//! Whose environment a cell and a command see, and what stays secret.

use std::ffi::OsString;

use serde_json::Value;

use super::bench::Bench;
use super::case::{Case, Checked, case};
use super::check::{contains, equal, holds};
use crate::environment::Environment;
use crate::session::SessionOptions;

pub(super) const CASES: &[Case] = &[
    case!(no_name_of_a_secret_reaches_a_cell),
    case!(nothing_of_the_broker_travels_but_what_is_named),
    case!(withheld_values_are_masked),
    case!(what_the_link_sets_is_there),
    case!(files_of_the_session_are_private),
    Case::prints(
        "children_of_a_cell_see_what_it_sees",
        "import os, subprocess, sys
os.environ['CONF_MADE'] = 'here'
seen = subprocess.check_output([sys.executable, '-c', 'import os; print(sorted(os.environ))']).decode()
print(sorted(set(os.environ) - set(eval(seen))), 'CONF_MADE' in eval(seen))",
        "[] True\n",
    ),
];

const SECRET: &str = "tr0ub4dor-and-3";

/// The broker has these variables too.
fn with_variables(options: &mut SessionOptions, more: &[(&str, &str)]) {
    let own = options
        .environment
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let more = more.iter().map(|&(name, value)| (name.into(), value.into()));
    let all: Vec<(OsString, OsString)> = own.chain(more).collect();
    options.environment = all.into_iter().collect::<Environment>();
}

async fn no_name_of_a_secret_reaches_a_cell(bench: &Bench) -> Checked {
    let seat = bench.another(|options| with_variables(options, &[("CONF_API_KEY", SECRET), ("CONF_AUTH", SECRET)]))?;
    let code = "import json, os\nsecret = 'KEY TOKEN SECRET PASSWORD PASSWD CREDENTIAL CREDS AUTH BEARER DSN WEBHOOK APIKEY'.split()\n\
                print(json.dumps([n for n in os.environ if any(word in n.upper() for word in secret)]))";
    equal(
        "variables with the name of a secret",
        &seat.value(code).await?,
        &Value::Array(Vec::new()),
    )
}

async fn nothing_of_the_broker_travels_but_what_is_named(bench: &Bench) -> Checked {
    let seat = bench.another(|options| {
        with_variables(
            options,
            &[
                ("CONF_NAMED", "named"),
                ("CONF_TOKEN", "named too"),
                ("CONF_OTHER", "other"),
                ("MODAL_TOKEN_SECRET", SECRET),
            ],
        );
        options.passes.env_passthrough = vec!["CONF_NAMED".into(), "CONF_TOKEN".into(), "MODAL_TOKEN_SECRET".into()];
        options.passes.set.insert("CONF_GIVEN".into(), "given".into());
    })?;
    let code = "import os\nprint(*[os.environ.get(n) for n in ('CONF_NAMED', 'CONF_TOKEN', 'CONF_OTHER', 'CONF_GIVEN')], os.environ.get('MODAL_TOKEN_SECRET') in (None, ''))\n\
                from hermes_tools import terminal\nprint(terminal('echo $CONF_NAMED $CONF_GIVEN')['output'], end='')";
    seat.prints(code, "named named too None given True\nnamed given\n")
        .await
}

async fn withheld_values_are_masked(bench: &Bench) -> Checked {
    let seat = bench.another(|options| with_variables(options, &[("CONF_API_KEY", SECRET)]))?;
    let (one, two) = SECRET.split_at(5);
    let code = format!("s = '{one}' + '{two}'\nprint('seen', s)\nraise ValueError(s)");
    let outcome = seat.cell(code).await?;
    holds(
        "the value nowhere in the outcome",
        !format!("{outcome:?}").contains(SECRET),
        &"it is",
    )?;
    contains("the output", &outcome.output, &["seen ***"])?;
    contains(
        "the error",
        outcome.error.as_deref().unwrap_or_default(),
        &["ValueError: ***"],
    )?;
    // What a script does with it otherwise is its own.
    let code = format!("print(len('{one}' + '{two}'))");
    seat.prints(&code, "15\n").await
}

async fn what_the_link_sets_is_there(bench: &Bench) -> Checked {
    let code = "import os, hermes_tools
print('HERMES_RPC_SOCKET' in os.environ or 'HERMES_RPC_DIR' in os.environ, os.environ.get('HERMES_RPC_CELL', '').isdigit())
print(os.environ.get('PYTHONUTF8'), 'MPLBACKEND' in os.environ)
print(os.path.dirname(os.path.realpath(hermes_tools.__file__)) in [os.path.realpath(p) for p in os.environ['PYTHONPATH'].split(os.pathsep)])
print(open(__file__).read()[:9])";
    bench.prints(code, "True True\n1 True\nTrue\nimport os\n").await
}

async fn files_of_the_session_are_private(bench: &Bench) -> Checked {
    let code = "import os, stat, hermes_tools
place = os.path.dirname(os.path.realpath(hermes_tools.__file__))
# Whatever stands open on the way is closed by the folder that is not.
closed = []
while place != '/':
    found = os.stat(place)
    if not found.st_mode & 0o077 and found.st_uid == os.getuid(): closed.append(place)
    place = os.path.dirname(place)
print(len(closed) > 0)";
    bench.prints(code, "True\n").await
}
