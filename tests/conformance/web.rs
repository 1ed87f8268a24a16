//! The web tools from a script: wherever it runs, the broker asks.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use talaria_broker::config::SearchProvider;
use talaria_broker::tools::BuiltinTools;
use talaria_broker::web::{Endpoint, SearchOptions, WebOptions};

use crate::rig::{Rig, TestSession};
use crate::{Case, cases};

pub(crate) const CASES: &[Case] = cases![
    a_script_searches_and_reads_what_it_found,
    a_page_of_the_web_that_is_too_long_is_read_on_with_read_file,
    what_cannot_be_reached_is_an_error_in_its_place,
    the_end_of_a_cell_ends_its_requests,
];

/// The command line's own target is this machine.
pub(crate) const CASES_HERE: &[Case] = cases![
    the_command_line_reads_the_configuration,
    certificates_are_checked_against_those_that_are_trusted,
];

/// A certificate for 127.0.0.1 that is valid for a hundred years, and its key, which nothing else is worth.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBmTCCAT+gAwIBAgIUCqZ48FRkznVoMORcxMzEb/EQJtkwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNVGFsYXJpYSB0ZXN0czAgFw0yNjExMzAwMTM2MzdaGA8yMTI2
MTEwNjAxMzYzN1owGDEWMBQGA1UEAwwNVGFsYXJpYSB0ZXN0czBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABDfZK6/qtUx84BoyX2LzYW+7ZJp5Em6DgI3m6Mk2l+qk
KIAYdkuXGd70QFCv93ts8OH77iNzJxlj7tlntobZ8vejZTBjMA8GA1UdEQQIMAaH
BH8AAAEwDAYDVR0TAQH/BAIwADAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0lBAwwCgYI
KwYBBQUHAwEwHQYDVR0OBBYEFJHFNoTGdZuLnjdC+qi+/82ZHAinMAoGCCqGSM49
BAMCA0gAMEUCIAKzrvMVesIRVaEfH21ajFtHpsrLCwa8F0Srwap9MRzyAiEA34YU
v079Wc60hT6tjeVkGw0qQH2DOuiYbg25Y7nXM9k=
-----END CERTIFICATE-----
";
/// One that has nothing to do with it.
const OTHER_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBnzCCAUWgAwIBAgIUNX+VDXHyhdx1zft+KBix8umuXLwwCgYIKoZIzj0EAwIw
GzEZMBcGA1UEAwwQVGFsYXJpYSwgYW5vdGhlcjAgFw0yNjExMzAwMTM3NTFaGA8y
MTI2MTEwNjAxMzc1MVowGzEZMBcGA1UEAwwQVGFsYXJpYSwgYW5vdGhlcjBZMBMG
ByqGSM49AgEGCCqGSM49AwEHA0IABO27e+uvoTrsbzmo+gids3lXaLro2pGvyj0B
n328k0/S2RBJrJyyyfOIRLkaQGI8r4mxEHyQc+2Q/gGnadKzhUCjZTBjMA8GA1Ud
EQQIMAaHBH8AAAEwDAYDVR0TAQH/BAIwADAOBgNVHQ8BAf8EBAMCB4AwEwYDVR0l
BAwwCgYIKwYBBQUHAwEwHQYDVR0OBBYEFOKzPxfE5f8SWFng7FEEgZNkBmhoMAoG
CCqGSM49BAMCA0gAMEUCIHMAEMWxifTZmunxYFJMlBSgAI0lAjY1iat17UxUbMTs
AiEAxYCUDJEH2cFIRoFxM5+2VUwHGlap8+sghGuEZeG0qjo=
-----END CERTIFICATE-----
";
const CERTIFICATE_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgg/75CoSCsAb6g6mv
85aYDSe3aiXuLcNGE+MKrsaksF6hRANCAAQ32Suv6rVMfOAaMl9i82Fvu2SaeRJu
g4CN5ujJNpfqpCiAGHZLlxne9EBQr/d7bPDh++4jcycZY+7ZZ7aG2fL3
-----END PRIVATE KEY-----
";

/// A web of its own: a SearXNG, and pages that it finds. Lives until the tests end.
fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let base = format!("http://{address}");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let address = address.clone();
            std::thread::spawn(move || answer(stream.unwrap(), &address));
        }
    });
    base
}

fn answer(mut stream: TcpStream, address: &str) {
    let mut reader = BufReader::new(&stream);
    let mut first = String::new();
    let mut line = String::new();
    let _ = reader.read_line(&mut first);
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        line.clear();
    }
    let path = first.split_whitespace().nth(1).unwrap_or_default();
    let words = "Asynchronous runtimes schedule tasks on threads, as the following comparison shows. ".repeat(5);
    let (kind, body) = if path.starts_with("/search?") {
        let results: Vec<Value> = ["tokio", "smol", "missing"]
            .map(|name| json!({"url": format!("http://{address}/{name}"), "title": name, "content": format!("About {name}.")}))
            .into();
        (
            "application/json",
            json!({"query": "q", "results": results}).to_string(),
        )
    } else if path == "/long" {
        (
            "text/plain",
            (1..=5000).map(|number| format!("line {number}\n")).collect(),
        )
    } else if path == "/slow" {
        std::thread::sleep(Duration::from_secs(20));
        return;
    } else if path == "/missing" {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    } else {
        (
            "text/html",
            format!("<title>{path}</title><article><h2>Of {path}</h2><p>{words}</p></article>"),
        )
    };
    let head = format!(
        "Content-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close",
        body.len()
    );
    let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_bytes());
}

/// A session whose web this is.
fn session(rig: &Rig, base: &str) -> TestSession {
    let mut web = WebOptions {
        search: Ok(SearchOptions {
            provider: SearchProvider::Searxng,
            endpoint: Endpoint {
                url: base.to_owned(),
                url_variable: None,
                key: None,
                key_variable: "SEARXNG_API_KEY".to_owned(),
            },
            timeout: Duration::from_secs(30),
        }),
        ..WebOptions::default()
    };
    web.extract.allow_private = vec!["127.0.0.1".parse().unwrap()];
    let host = BuiltinTools::new(Some(rig.scratch().join("spill"))).with_web(web);
    rig.session_with(|options| options.host = Arc::new(host))
}

fn a_script_searches_and_reads_what_it_found(rig: &Rig) {
    let base = start();
    let session = session(rig, &base);
    let summaries = session.value(include_str!("worked_examples/research.py"));
    let titles: Vec<&str> = summaries
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["title"].as_str())
        .collect();
    assert_eq!(titles, ["tokio", "smol"]);
    assert_eq!(summaries[0]["url"], format!("{base}/tokio"));
    assert!(
        summaries[0]["excerpt"]
            .as_str()
            .unwrap()
            .starts_with("## Of /tokio\n\nAsynchronous"),
        "{summaries}"
    );
    let shape = session.value("import json; print(json.dumps(web_search('x', 1)))");
    let one = json!({"url": format!("{base}/tokio"), "title": "tokio", "description": "About tokio."});
    assert_eq!(shape, json!({"data": {"web": [one]}}));
}

fn a_page_of_the_web_that_is_too_long_is_read_on_with_read_file(rig: &Rig) {
    let base = start();
    let session = session(rig, &base);
    let code = format!(
        "import json, re\nfrom hermes_tools import web_extract, read_file\n\
         page = web_extract('{base}/long', char_limit=1000)['results'][0]\n\
         path = re.search('all of it is in (.+?), page through it with read_file', page['content']).group(1)\n\
         print(json.dumps([page, read_file(path, offset=2500, limit=1)]))"
    );
    let both = session.value(&code);
    let content = both[0]["content"].as_str().unwrap();
    assert!(
        content.starts_with("line 1\n") && content.ends_with("line 5000\n"),
        "{content}"
    );
    assert!(content.chars().count() < 1400, "{}", content.len());
    assert_eq!((&both[0]["error"], &both[0]["title"]), (&Value::Null, &json!("long")));
    assert_eq!(both[1]["content"], "2500|line 2500");
}

fn what_cannot_be_reached_is_an_error_in_its_place(rig: &Rig) {
    let base = start();
    let session = session(rig, &base);
    let code = format!(
        "import json\nfrom hermes_tools import web_extract\n\
         print(json.dumps(web_extract(['{base}/a', '{base}/missing', 'http://169.254.169.254/', '{base}/b'])))"
    );
    let result = session.value(&code);
    let results = result["results"].as_array().unwrap();
    let errors: Vec<bool> = results.iter().map(|one| one["error"].is_null()).collect();
    assert_eq!(errors, [true, false, false, true]);
    assert_eq!(results[1]["url"], format!("{base}/missing"));
    assert!(results[2]["error"].as_str().unwrap().contains("metadata address"));
    let unconfigured = rig.session();
    let result = unconfigured.value("import json, hermes_tools; print(json.dumps(hermes_tools.web_search('x')))");
    assert!(result["error"].as_str().unwrap().contains("SEARXNG_URL"), "{result}");
    assert_eq!(result.as_object().unwrap().len(), 1);
}

fn the_end_of_a_cell_ends_its_requests(rig: &Rig) {
    let base = start();
    let session = session(rig, &base);
    let code = format!(
        "import threading, time\nfrom hermes_tools import web_extract\n\
         threading.Thread(target=web_extract, args=('{base}/slow',), daemon=True).start()\ntime.sleep(0.3)\nprint('done')"
    );
    let outcome = session.cell(code);
    assert_eq!(outcome.output, "done\n", "{outcome:?}");
    assert!(outcome.duration_seconds < 15.0, "the request held the cell");
}

fn the_command_line_reads_the_configuration(rig: &Rig) {
    let base = start();
    let config = rig.file(
        "web.yaml",
        format!(
            "web:\n  search:\n    provider: searxng\n    url: {base}\n    api_key_env: SEARCH_LOGIN\n  extract:\n    allow_private: [127.0.0.1]\n"
        ),
    );
    let config = config.to_str().unwrap();
    let code = format!(
        "from hermes_tools import web_search, web_extract\nimport os\n\
         print(len(web_search('x')['data']['web']), web_extract('{base}/a')['results'][0]['error'], os.environ.get('SEARCH_LOGIN'))\n\
         print('bob:s3cret-42')"
    );
    let run = rig
        .cli([
            "run",
            "--config",
            config,
            "--allow",
            "web_search,web_extract",
            "-c",
            &code,
        ])
        .env("SEARCH_LOGIN", "bob:s3cret-42")
        .run();
    assert_eq!(
        (run.code(), run.stdout.as_str()),
        (0, "3 None None\n***\n"),
        "{}",
        run.stderr
    );
    let narrow = rig
        .cli([
            "run",
            "--config",
            config,
            "--allow",
            "web_extract",
            "-c",
            "import hermes_tools; print(hermes_tools._call('web_search', {'query': 'x'}))",
        ])
        .run();
    assert!(
        narrow
            .stdout
            .contains("web_search is not available in scripts; available: web_extract"),
        "{}",
        narrow.stdout
    );
    let passed = rig
        .cli(["run", "--config", config, "--env", "SEARCH_LOGIN", "-c", "pass"])
        .env("SEARCH_LOGIN", "bob:s3cret-42")
        .run();
    assert!(
        passed.code() == 2 && passed.stderr.contains("credential of the broker"),
        "{}",
        passed.stderr
    );
    let doctor = rig
        .cli(["doctor", "--config", config])
        .env("SEARCH_LOGIN", "bob:s3cret-42")
        .run();
    for expected in [
        format!("ok    web_search: set to searxng at {base}, with the key in SEARCH_LOGIN; not asked now\n"),
        "ok    web_extract: built in; public addresses, and 127.0.0.1/32\n".to_owned(),
    ] {
        assert!(doctor.stdout.contains(&expected), "{}", doctor.stdout);
    }
    assert!(!doctor.stdout.contains("s3cret"), "{}", doctor.stdout);
    let missing = rig.cli(["doctor"]).env("TALARIA_WEB_SEARCH_PROVIDER", "exa").run();
    assert!(
        missing
            .stdout
            .contains("FAIL  web_search: exa is chosen for web.search, but its key is missing"),
        "{}",
        missing.stdout
    );
    let none = rig.cli(["doctor"]).run();
    assert!(
        none.stdout
            .contains("off   web_search: no search provider is configured"),
        "{}",
        none.stdout
    );
}

/// A server of Python's that speaks TLS; ends with this value.
struct Secure(Child);

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn certificates_are_checked_against_those_that_are_trusted(rig: &Rig) {
    let certificate = rig.file("certificate.pem", CERTIFICATE);
    rig.file("key.pem", CERTIFICATE_KEY);
    rig.file("page.txt", "over TLS");
    let server = "import http.server, ssl\n\
        server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n\
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n\
        context.load_cert_chain('certificate.pem', 'key.pem')\n\
        server.socket = context.wrap_socket(server.socket, server_side=True)\n\
        print(server.server_port, flush=True)\nserver.serve_forever()";
    let mut server = Command::new(rig.python())
        .args(["-c", server])
        .current_dir(certificate.parent().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut port)
        .unwrap();
    let _server = Secure(server);
    let url = format!("https://127.0.0.1:{}/page.txt", port.trim());
    let code = format!(
        "from hermes_tools import web_extract\npage = web_extract('{url}')['results'][0]\nprint(page['content'], page['error'])"
    );
    let run = |trusted: &str| {
        let run = rig
            .cli(["run", "-c", &code])
            .env("TALARIA_WEB_EXTRACT_ALLOW_PRIVATE", "127.0.0.1");
        run.env("SSL_CERT_FILE", trusted).without("SSL_CERT_DIR").run()
    };
    let trusting = run(certificate.to_str().unwrap());
    assert_eq!(trusting.stdout, "over TLS None\n", "{trusting:?}");
    // Another certificate is trusted, not this one.
    let other = rig.file("other.pem", OTHER_CERTIFICATE);
    let refusing = run(other.to_str().unwrap());
    assert!(
        refusing.stdout.contains("invalid peer certificate") && refusing.stdout.contains("SSL_CERT_FILE"),
        "{refusing:?}"
    );
    assert_eq!(refusing.stderr, "");
}
