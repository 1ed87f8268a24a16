//! `talaria config`

use talaria_broker::config::{Flags, template};
use talaria_broker::environment::Environment;

use super::args::{ConfigVerb, Global};

pub(super) fn run(verb: &ConfigVerb, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    if verb.template {
        super::print(template())?;
        return Ok(0);
    }
    let config = super::load(global, environment, Flags::default())?;
    let rows: Vec<(String, String, String)> = config
        .explain()
        .into_iter()
        .map(|row| {
            (
                row.key,
                row.value.unwrap_or_else(|| "(not set)".to_owned()),
                row.origin.to_string(),
            )
        })
        .collect();
    let keys = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    let values = rows.iter().map(|row| row.1.chars().count()).max().unwrap_or(0).min(40);
    let mut text = String::new();
    for (key, value, origin) in rows {
        text.push_str(&format!("{key:keys$}  {value:values$}  {origin}\n"));
    }
    super::print(&text)?;
    Ok(0)
}
