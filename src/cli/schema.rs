//! `talaria schema`

use serde_json::json;
use talaria_broker::config::Flags;
use talaria_broker::environment::Environment;
use talaria_broker::schema::execute_code;
use talaria_broker::session::SessionOptions;

use super::args::{Global, Schema, SchemaFormat};

pub(super) fn run(verb: &Schema, global: &Global, environment: &Environment) -> anyhow::Result<u8> {
    let config = super::load(global, environment, Flags::default())?;
    let options = SessionOptions::from_config(&config, &config.resolve(&config.target)?, environment)?;
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
