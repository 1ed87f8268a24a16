//! The command line `talaria`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before any thread exists: see `privacy`.
    let environment = talaria_broker::privacy::take_environment();
    talaria_broker::privacy::survive_file_size_limit();
    ExitCode::from(cli::main(&environment))
}
