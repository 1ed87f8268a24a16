//! What `talaria config` and `talaria doctor` tell of the web tools: settings, and what stands in for those that nobody made.

use super::web::{PROXIES, proxy, usual_variable, web_options};
use crate::config::{Config, Explained, Origin};
use crate::environment::{Environment, without_login};
use crate::web::{Endpoint, Reader};

/// [`Config::explain`], with what the web tools take from the broker's own variables where nobody set it, and whether
/// there is a key. Keys are not shown.
#[must_use]
pub fn explain_with_web(config: &Config, environment: &Environment) -> Vec<Explained> {
    let mut rows = config.explain();
    let options = web_options(&config.web, environment);
    if let Ok(search) = &options.search {
        // The provider follows from the variable of the key or the address, where one is set.
        let chosen_by = ["web.search.api_key_env", "web.search.url"]
            .into_iter()
            .find_map(|key| rows.iter().find(|row| row.key == key && row.value.is_some()))
            .map_or_else(
                || Origin::Variable(usual_variable(search.provider).to_owned()),
                |row| row.origin.clone(),
            );
        fill(&mut rows, "web.search.provider", search.provider.as_str(), chosen_by);
        fill_endpoint(&mut rows, "web.search", &search.endpoint);
    }
    if let Ok(Reader::Provider(_, endpoint)) = &options.extract.reader {
        fill_endpoint(&mut rows, "web.extract", endpoint);
    }
    rows.extend(explain_proxies(environment));
    rows
}

/// The proxies that the web tools go through, by the variables that set them; without user and password.
#[must_use]
pub fn explain_proxies(environment: &Environment) -> Vec<Explained> {
    let row = |name: &&str| {
        let (variable, value) = proxy(environment, name)?;
        Some(Explained {
            key: (*name).to_owned(),
            value: Some(without_login(&value)),
            origin: Origin::Variable(variable),
        })
    };
    PROXIES.iter().filter_map(row).collect()
}

fn fill(rows: &mut [Explained], key: &str, value: &str, origin: Origin) {
    if let Some(row) = rows.iter_mut().find(|row| row.key == key && row.value.is_none()) {
        row.value = Some(value.to_owned());
        row.origin = origin;
    }
}

fn fill_endpoint(rows: &mut [Explained], section: &str, endpoint: &Endpoint) {
    let origin = endpoint.url_variable.clone().map_or(Origin::Default, Origin::Variable);
    fill(rows, &format!("{section}.url"), &endpoint.url, origin);
    let key = format!("{section}.api_key_env");
    fill(rows, &key, &endpoint.key_variable, Origin::Default);
    if let Some(row) = rows.iter_mut().find(|row| row.key == key) {
        let state = if endpoint.key.is_some() {
            "=***"
        } else {
            " (holds nothing)"
        };
        row.value = Some(format!("{}{state}", endpoint.key_variable));
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;
    use crate::config::Sources;

    #[test]
    fn what_the_usual_variables_set_is_told_with_its_origin_and_without_the_key() {
        let rows = |variables: &[(&str, &str)]| {
            let environment: Environment = variables.iter().copied().collect();
            let config = Config::load(&Sources {
                environment: environment.clone(),
                ..Sources::default()
            })
            .unwrap();
            explain_with_web(&config, &environment)
                .into_iter()
                .filter(|row| row.key.starts_with("web.") && row.value.is_some())
                .filter(|row| {
                    ["provider", "url", "api_key_env"]
                        .iter()
                        .any(|leaf| row.key.ends_with(leaf))
                })
                .map(|row| format!("{} {} {}", &row.key[4..], row.value.unwrap(), row.origin))
                .collect::<Vec<_>>()
        };
        let pages = "extract.provider builtin default";
        assert_eq!(rows(&[]), [pages]);
        assert_eq!(
            rows(&[("BRAVE_API_KEY", "s3cret")]),
            [
                "search.provider brave the variable BRAVE_API_KEY",
                "search.url https://api.search.brave.com default",
                "search.api_key_env BRAVE_API_KEY=*** default",
                pages
            ]
        );
        assert_eq!(
            rows(&[("SEARXNG_URL", "http://s/")]),
            [
                "search.provider searxng the variable SEARXNG_URL",
                "search.url http://s the variable SEARXNG_URL",
                "search.api_key_env SEARXNG_API_KEY (holds nothing) default",
                pages
            ]
        );
        assert_eq!(
            rows(&[
                ("TALARIA_WEB_SEARCH_API_KEY_ENV", "EXA_API_KEY"),
                ("EXA_API_KEY", "s3cret"),
                ("TALARIA_WEB_EXTRACT_PROVIDER", "tavily"),
                ("TAVILY_API_KEY", "s3cret"),
            ]),
            [
                "search.provider exa the variable TALARIA_WEB_SEARCH_API_KEY_ENV",
                "search.url https://api.exa.ai default",
                "search.api_key_env EXA_API_KEY=*** the variable TALARIA_WEB_SEARCH_API_KEY_ENV",
                "extract.provider tavily the variable TALARIA_WEB_EXTRACT_PROVIDER",
                "extract.url https://api.tavily.com default",
                "extract.api_key_env TAVILY_API_KEY=*** default",
            ]
        );
    }

    #[test]
    fn proxies_are_told_without_their_logins() {
        let environment = [("HTTPS_PROXY", "http://bob:s3cret@proxy:3128"), ("no_proxy", "x")];
        let told = explain_proxies(&environment.into_iter().collect());
        let told: Vec<String> = told
            .into_iter()
            .map(|row| format!("{} {} {}", row.key, row.value.unwrap(), row.origin))
            .collect();
        assert_eq!(
            told,
            [
                "https_proxy http://proxy:3128 the variable HTTPS_PROXY",
                "no_proxy x the variable no_proxy"
            ]
        );
    }
}
