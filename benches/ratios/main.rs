//! How fast Talaria is beside what people use for the same purpose.
//!
//! Each figure is a median, and its baseline is measured in the same run: both sides take turns, so
//! that whatever else the machine does hits both. Nothing is asserted; the last column says what is
//! wanted. Run by `benches/run`, which installs the baselines.

mod containers;
mod host;
mod local;
mod mcp;
mod measure;
mod modal;
mod pages;
mod patch;
mod search;
mod ssh;
mod web;

use measure::Result;

fn main() -> Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let wanted = move |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()?;
    // In a task, as the callers of a broker are.
    runtime.block_on(runtime.spawn(async move {
        if local::FIGURES.iter().any(|name| wanted(name)) {
            local::measure(&wanted).await?;
        }
        if containers::FIGURES.iter().any(|name| wanted(name)) {
            containers::measure(&wanted).await?;
        }
        if mcp::FIGURES.iter().any(|name| wanted(name)) {
            mcp::measure(&wanted).await?;
        }
        if modal::FIGURES.iter().any(|name| wanted(name)) {
            modal::measure(&wanted).await?;
        }
        if pages::FIGURES.iter().any(|name| wanted(name)) {
            pages::measure().await?;
        }
        if patch::FIGURES.iter().any(|name| wanted(name)) {
            patch::measure().await?;
        }
        if search::FIGURES.iter().any(|name| wanted(name)) {
            search::measure().await?;
        }
        if ssh::FIGURES.iter().any(|name| wanted(name)) {
            ssh::measure(&wanted).await?;
        }
        if web::FIGURES.iter().any(|name| wanted(name)) {
            web::measure(&wanted).await?;
        }
        Ok(())
    }))?
}
