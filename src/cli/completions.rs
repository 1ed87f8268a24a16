//! `talaria completions SHELL`

use clap::CommandFactory;

use super::args::Cli;

pub(super) fn run(shell: clap_complete::Shell) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "talaria", &mut script);
    super::print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
