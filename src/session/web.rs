//! From the configuration and the broker's variables to what the web tools work with.

use std::path::{Path, PathBuf};

use crate::config::{ExtractProvider, SearchProvider, Web, web_address};
use crate::environment::{Environment, Secret};
use crate::web::{Endpoint, ExtractOptions, Key, NO_PROVIDER, Proxies, Reader, SearchOptions, Unusable, WebOptions};

/// What a provider is known by: its own address, the variable that usually holds its key, and whether it needs one.
struct Known {
    url: Option<&'static str>,
    variable: &'static str,
    needs_key: bool,
}

/// The variable that says where a SearXNG is.
const SEARXNG_URL: &str = "SEARXNG_URL";

const BRAVE: Known = Known {
    url: Some("https://api.search.brave.com"),
    variable: "BRAVE_API_KEY",
    needs_key: true,
};
const TAVILY: Known = Known {
    url: Some("https://api.tavily.com"),
    variable: "TAVILY_API_KEY",
    needs_key: true,
};
const EXA: Known = Known {
    url: Some("https://api.exa.ai"),
    variable: "EXA_API_KEY",
    needs_key: true,
};
const FIRECRAWL: Known = Known {
    url: Some("https://api.firecrawl.dev"),
    variable: "FIRECRAWL_API_KEY",
    needs_key: true,
};
const SEARXNG: Known = Known {
    url: None,
    variable: "SEARXNG_API_KEY",
    needs_key: false,
};

fn known(provider: SearchProvider) -> &'static Known {
    match provider {
        SearchProvider::Searxng => &SEARXNG,
        SearchProvider::Brave => &BRAVE,
        SearchProvider::Tavily => &TAVILY,
        SearchProvider::Exa => &EXA,
        SearchProvider::Firecrawl => &FIRECRAWL,
    }
}

/// What the web tools work with: as the configuration says, with keys and addresses from the broker's variables. What
/// is missing is said by the tool that misses it.
#[must_use]
pub fn web_options(config: &Web, environment: &Environment) -> WebOptions {
    WebOptions {
        search: search(config, environment),
        extract: ExtractOptions {
            reader: reader(config, environment),
            timeout: config.extract.timeout,
            char_limit: usize::try_from(config.extract.char_limit).unwrap_or(usize::MAX),
            max_bytes: usize::try_from(config.extract.max_bytes).unwrap_or(usize::MAX),
            allow_private: config.extract.allow_private.clone(),
            pdf_reader: own_command(environment),
        },
        proxies: proxies(environment),
        names: None,
    }
}

/// The variables that the configuration names as holding keys. Scripts never get them.
#[must_use]
pub fn web_credentials(config: &Web) -> Vec<String> {
    let named = [&config.search.api_key_env, &config.extract.api_key_env];
    named.into_iter().flatten().cloned().collect()
}

fn search(config: &Web, environment: &Environment) -> Result<SearchOptions, Unusable> {
    let config = &config.search;
    let owner = config.api_key_env.as_deref().and_then(owner);
    let provider = match config.provider.or(owner) {
        Some(provider) => provider,
        None if config.url.is_some() => SearchProvider::Searxng,
        // A key goes to nobody but whom it was made for.
        None if let Some(variable) = &config.api_key_env => {
            return Err(format!(
                "web.search.api_key_env names the variable {variable}, but not whose key it holds; write the provider into \
                 web.search.provider ({})",
                SearchProvider::WORDS.join(", ")
            ));
        }
        None => usual(environment).ok_or(NO_PROVIDER)?,
    };
    Ok(SearchOptions {
        provider,
        endpoint: endpoint(
            "web.search",
            provider.as_str(),
            known(provider),
            config.url.as_deref(),
            config.api_key_env.as_deref(),
            environment,
        )?,
        timeout: config.timeout,
    })
}

/// All providers, in the order in which they are chosen.
fn providers() -> impl Iterator<Item = SearchProvider> {
    SearchProvider::WORDS.iter().filter_map(|word| word.parse().ok())
}

/// The provider whose key a variable usually holds.
fn owner(variable: &str) -> Option<SearchProvider> {
    providers().find(|provider| known(*provider).variable == variable)
}

/// The variable that chooses a provider where it is set and nothing else does.
pub(super) fn usual_variable(provider: SearchProvider) -> &'static str {
    match provider {
        SearchProvider::Searxng => SEARXNG_URL,
        other => known(other).variable,
    }
}

/// The first provider whose usual variable is set.
fn usual(environment: &Environment) -> Option<SearchProvider> {
    providers().find(|provider| environment.filled(usual_variable(*provider)).is_some())
}

fn reader(config: &Web, environment: &Environment) -> Result<Reader, Unusable> {
    let config = &config.extract;
    let known = match config.provider {
        ExtractProvider::Builtin => return Ok(Reader::Builtin),
        ExtractProvider::Tavily => &TAVILY,
        ExtractProvider::Exa => &EXA,
        ExtractProvider::Firecrawl => &FIRECRAWL,
    };
    let endpoint = endpoint(
        "web.extract",
        config.provider.as_str(),
        known,
        config.url.as_deref(),
        config.api_key_env.as_deref(),
        environment,
    )?;
    Ok(Reader::Provider(config.provider, endpoint))
}

fn endpoint(
    section: &str,
    provider: &str,
    known: &Known,
    url: Option<&str>,
    variable: Option<&str>,
    environment: &Environment,
) -> Result<Endpoint, Unusable> {
    let mut url_variable = None;
    let address = match (url.or(known.url), environment.filled(SEARXNG_URL)) {
        (Some(url), _) => url.to_owned(),
        (None, Some(url)) => {
            let url = url.to_string_lossy();
            url_variable = Some(SEARXNG_URL.to_owned());
            web_address(&url).map_err(|problem| format!("the variable {SEARXNG_URL} {problem}"))?;
            url.trim_end_matches('/').to_owned()
        }
        (None, None) => {
            return Err(format!(
                "{provider} is chosen for {section}, but not where it is; write its address into {section}.url or the \
                 variable {SEARXNG_URL}"
            ));
        }
    };
    let variable = variable.unwrap_or(known.variable);
    let key = environment.filled(variable).map(|value| Key {
        variable: variable.to_owned(),
        value: Secret::new(value.to_string_lossy().trim()),
    });
    // An instance of one's own may be open to all.
    let is_own = url.is_some_and(|url| Some(url) != known.url);
    if key.is_none() && known.needs_key && !is_own {
        return Err(format!(
            "{provider} is chosen for {section}, but its key is missing: set the variable {variable} where the broker \
             starts, or name another in {section}.api_key_env"
        ));
    }
    Ok(Endpoint {
        url: address,
        url_variable,
        key,
        key_variable: variable.to_owned(),
    })
}

/// The usual variables for proxies.
pub(super) const PROXIES: [&str; 4] = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// The proxies of the usual variables.
#[must_use]
pub fn proxies(environment: &Environment) -> Proxies {
    let [http, https, all, no] = PROXIES.map(|name| proxy(environment, name).unwrap_or_default().1);
    Proxies { http, https, all, no }
}

/// One of these variables, in either case, with its value.
pub(super) fn proxy(environment: &Environment, name: &str) -> Option<(String, String)> {
    [name.to_owned(), name.to_ascii_uppercase()]
        .into_iter()
        .find_map(|name| {
            let value = environment.filled(&name)?.to_string_lossy().into_owned();
            Some((name, value))
        })
}

/// The command `talaria`: this process, where it is that, else the one on `PATH`.
fn own_command(environment: &Environment) -> Option<PathBuf> {
    let is_ours = |path: &PathBuf| path.file_stem().is_some_and(|name| name == "talaria");
    if std::env::current_exe().ok().filter(is_ours).is_some() {
        // Still this very program when its file was replaced since.
        return Some(PathBuf::from("/proc/self/exe"));
    }
    let path = environment.filled("PATH")?;
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("talaria"))
        .find(|file: &PathBuf| Path::is_file(file))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;
    use crate::config::{WebExtract, WebSearch};

    fn config(provider: Option<SearchProvider>, url: Option<&str>, variable: Option<&str>) -> Web {
        Web {
            search: WebSearch {
                provider,
                url: url.map(str::to_owned),
                api_key_env: variable.map(str::to_owned),
                ..Web::default().search
            },
            ..Web::default()
        }
    }

    fn chosen(config: &Web, variables: &[(&str, &str)]) -> Result<(String, String, String), String> {
        let environment = variables.iter().copied().collect();
        web_options(config, &environment).search.map(|search| {
            let key = search.endpoint.key.map(|key| key.variable).unwrap_or_default();
            (search.provider.to_string(), search.endpoint.url, key)
        })
    }

    #[test]
    fn the_provider_is_the_configured_one_or_the_first_whose_variable_is_set() {
        let nothing = || config(None, None, None);
        let brave = "https://api.search.brave.com";
        for (config, variables, expected) in [
            (
                nothing(),
                &[("BRAVE_API_KEY", "k")][..],
                ("brave", brave, "BRAVE_API_KEY"),
            ),
            (
                nothing(),
                &[("EXA_API_KEY", "k"), ("TAVILY_API_KEY", "k")],
                ("tavily", "https://api.tavily.com", "TAVILY_API_KEY"),
            ),
            (
                nothing(),
                &[("SEARXNG_URL", "http://localhost:8888/"), ("BRAVE_API_KEY", "k")],
                ("searxng", "http://localhost:8888", ""),
            ),
            (
                config(Some(SearchProvider::Brave), None, None),
                &[("SEARXNG_URL", "http://localhost:8888/"), ("BRAVE_API_KEY", "k")],
                ("brave", brave, "BRAVE_API_KEY"),
            ),
            (
                config(Some(SearchProvider::Brave), None, Some("MINE")),
                &[("MINE", "k"), ("BRAVE_API_KEY", "k")],
                ("brave", brave, "MINE"),
            ),
            (
                config(None, Some("http://s:8080"), None),
                &[("BRAVE_API_KEY", "k")],
                ("searxng", "http://s:8080", ""),
            ),
            (
                config(None, None, Some("TAVILY_API_KEY")),
                &[
                    ("SEARXNG_URL", "http://localhost:8888/"),
                    ("BRAVE_API_KEY", "k"),
                    ("TAVILY_API_KEY", "k"),
                ],
                ("tavily", "https://api.tavily.com", "TAVILY_API_KEY"),
            ),
            (
                config(None, Some("http://s:8080"), Some("MINE")),
                &[("MINE", "k"), ("BRAVE_API_KEY", "k")],
                ("searxng", "http://s:8080", "MINE"),
            ),
            (
                config(Some(SearchProvider::Firecrawl), Some("http://f:3002"), None),
                &[],
                ("firecrawl", "http://f:3002", ""),
            ),
        ] {
            let (provider, url, key) = chosen(&config, variables).unwrap();
            assert_eq!((provider.as_str(), url.as_str(), key.as_str()), expected);
        }
    }

    #[test]
    fn where_an_address_came_from_is_known() {
        let variables = [("SEARXNG_URL", "http://s/")].into_iter().collect();
        let of = |config: &Web| web_options(config, &variables).search.unwrap().endpoint;
        let from_variable = of(&config(None, None, None));
        assert_eq!(from_variable.url_variable.as_deref(), Some("SEARXNG_URL"));
        assert_eq!(from_variable.key_variable, "SEARXNG_API_KEY");
        let from_file = of(&config(None, Some("http://t"), Some("MINE")));
        assert_eq!(
            (from_file.url_variable, from_file.key_variable.as_str()),
            (None, "MINE")
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        for (config, variables, words) in [
            (
                config(None, None, None),
                &[("BRAVE_API_KEY", "")][..],
                ["BRAVE_API_KEY", "SEARXNG_URL"],
            ),
            (
                config(Some(SearchProvider::Exa), None, None),
                &[("BRAVE_API_KEY", "k")],
                ["EXA_API_KEY", "web.search.api_key_env"],
            ),
            (
                config(Some(SearchProvider::Exa), None, Some("MINE")),
                &[("EXA_API_KEY", "k")],
                ["MINE", "web.search"],
            ),
            (
                config(None, None, Some("MINE")),
                &[("MINE", "k"), ("BRAVE_API_KEY", "k")],
                ["variable MINE", "web.search.provider"],
            ),
            (
                config(Some(SearchProvider::Searxng), None, None),
                &[],
                ["web.search.url", "SEARXNG_URL"],
            ),
            (
                config(None, None, None),
                &[("SEARXNG_URL", "http://bob:s3cret@s/")],
                ["the variable SEARXNG_URL", "user or password"],
            ),
        ] {
            let error = chosen(&config, variables).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn pages_are_read_here_unless_a_provider_is_chosen() {
        let of = |provider, variables: &[(&str, &str)]| {
            let config = Web {
                extract: WebExtract {
                    provider,
                    ..Web::default().extract
                },
                ..Web::default()
            };
            web_options(&config, &variables.iter().copied().collect())
                .extract
                .reader
        };
        assert!(matches!(
            of(ExtractProvider::Builtin, &[("EXA_API_KEY", "k")]),
            Ok(Reader::Builtin)
        ));
        let exa = of(ExtractProvider::Exa, &[("EXA_API_KEY", "k")]);
        assert!(
            matches!(exa, Ok(Reader::Provider(ExtractProvider::Exa, endpoint)) if endpoint.url == "https://api.exa.ai")
        );
        assert!(of(ExtractProvider::Tavily, &[]).unwrap_err().contains("TAVILY_API_KEY"));
    }

    #[test]
    fn variables_that_the_configuration_names_are_credentials() {
        let mut config = config(None, None, Some("MINE"));
        config.extract.api_key_env = Some("OTHER".to_owned());
        assert_eq!(web_credentials(&config), ["MINE", "OTHER"]);
    }

    #[test]
    fn proxies_are_read_in_either_case_and_the_lower_one_counts() {
        let environment = [
            ("HTTP_PROXY", "http://a"),
            ("http_proxy", "http://b"),
            ("NO_PROXY", "x"),
        ];
        let proxies = proxies(&environment.into_iter().collect());
        assert_eq!(
            (proxies.http.as_str(), proxies.no.as_str(), proxies.all.as_str()),
            ("http://b", "x", "")
        );
    }
}
