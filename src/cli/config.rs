//! `talaria config`

use talaria_broker::config::{Flags, template};
use talaria_broker::environment::Environment;
use talaria_broker::session::{explain_with_web, web_options};
use talaria_broker::web::NO_PROVIDER;

use super::args::{ConfigVerb, Global};

pub(super) fn run(verb: &ConfigVerb, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    if verb.template {
        super::print(template())?;
        return Ok(0);
    }
    let config = super::load(global, environment, Flags::default())?;
    let web = web_options(&config.web, environment);
    let problems = [
        ("web_search", web.search.err().filter(|why| why != NO_PROVIDER)),
        ("web_extract", web.extract.reader.err()),
    ];
    for (tool, problem) in problems {
        if let Some(why) = problem {
            super::say(&format!("warning: {tool}: {why}"));
        }
    }
    let rows: Vec<(String, String, String)> = explain_with_web(&config, environment)
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
