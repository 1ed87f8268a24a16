//! `talaria schema`

use serde_json::json;
use talaria_broker::config::Flags;
use talaria_broker::environment::Environment;
use talaria_broker::schema::execute_code;
use talaria_broker::session::SessionOptions;

use super::UsageError;
use super::args::{Global, Schema, SchemaFormat};

pub(super) fn run(verb: &Schema, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    let flags = Flags {
        target: verb.on.clone(),
        ..Flags::default()
    };
    let config = super::load(global, environment, flags)?;
    let mut options = SessionOptions::from_config(&config, &config.resolve(&config.target)?, environment)?;
    if let Some(names) = &verb.allow {
        options
            .check_allowed(names)
            .map_err(|error| UsageError(format!("the flag --allow: {error}")))?;
        let offered = options.host.tools().iter().map(|spec| spec.name.clone());
        options.disabled_tools = offered.filter(|name| !names.contains(name)).collect();
    }
    let tool = execute_code(&options);
    let schema = match verb.format {
        SchemaFormat::Mcp => json!({
            "name": tool.name, "description": tool.doc, "inputSchema": tool.schema,
        }),
        SchemaFormat::Openai => json!({
            "type": "function",
            "function": { "name": tool.name, "description": tool.doc, "parameters": tool.schema },
        }),
        SchemaFormat::Anthropic => json!({
            "name": tool.name, "description": tool.doc, "input_schema": tool.schema,
        }),
    };
    super::print(&format!("{schema:#}\n"))?;
    Ok(0)
}
