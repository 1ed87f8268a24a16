//! `talaria read-pdf`: reads one PDF for the broker, in a process that may be killed.

use anyhow::anyhow;
use talaria_broker::web::read_standard_input;

pub(super) fn run() -> anyhow::Result<u8> {
    let text = read_standard_input().map_err(|error| anyhow!(error))?;
    super::print(&text)?;
    Ok(0)
}
