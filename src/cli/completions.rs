//! `talaria completions SHELL`

use clap::{Command, CommandFactory};

use super::args::Cli;

pub(super) fn run(shell: clap_complete::Shell) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(Cli::command()), "talaria", &mut script);
    super::print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// The command without the verbs that its help does not show: scripts for shells would offer them all the same.
fn shown(command: Command) -> Command {
    let verbs: Vec<Command> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .cloned()
        .collect();
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new("talaria")
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments().cloned())
        .subcommands(verbs)
}
