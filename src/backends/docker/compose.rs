//! Which container a service of compose is.
//!
//! Everything is read from the labels that compose gives its containers; the compose file itself is looked at only for
//! the name of the project, by the same rules.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::environment::Environment;
use crate::suggest::nearest;

/// The label that names the project.
pub(super) const PROJECT: &str = "com.docker.compose.project";
const SERVICE: &str = "com.docker.compose.service";
const NUMBER: &str = "com.docker.compose.container-number";
const ONE_OFF: &str = "com.docker.compose.oneoff";
const FOLDER: &str = "com.docker.compose.project.working_dir";
const VERSION: &str = "com.docker.compose.version";

/// Names of compose files, in the order in which compose looks for them.
const FILES: [&str; 4] = [
    "compose.yaml",
    "compose.yml",
    "docker-compose.yml",
    "docker-compose.yaml",
];

/// A service as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComposeService {
    /// The project, where it was given.
    pub project: Option<String>,
    /// The service.
    pub service: String,
    /// Which of its containers, counted from 1.
    pub index: Option<u32>,
    /// What says the project where it was not given.
    pub sources: ProjectSources,
}

/// What says which project is meant when nobody names one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectSources {
    /// `COMPOSE_PROJECT_NAME`
    pub variable: Option<String>,
    /// The first file of `COMPOSE_FILE`.
    pub file: Option<PathBuf>,
    /// Where the user is: compose looks for a file there and above.
    pub folder: PathBuf,
}

/// A container that compose made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    name: String,
    state: String,
    project: String,
    service: String,
    number: u32,
    folder: Option<PathBuf>,
    /// Whether it was the first compose, whose command has a hyphen.
    is_first: bool,
}

impl Replica {
    /// Reads the labels of a container; `None` where it is none of a service.
    pub(super) fn read(name: String, state: &str, labels: &HashMap<String, String>) -> Option<Self> {
        if labels
            .get(ONE_OFF)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
        {
            return None;
        }
        Some(Self {
            name,
            state: state.to_owned(),
            project: labels.get(PROJECT)?.clone(),
            service: labels.get(SERVICE)?.clone(),
            number: labels.get(NUMBER).and_then(|number| number.parse().ok()).unwrap_or(1),
            folder: labels.get(FOLDER).map(PathBuf::from),
            is_first: labels.get(VERSION).is_some_and(|version| version.starts_with("1.")),
        })
    }

    fn runs(&self) -> bool {
        self.state == "running" || self.state == "paused"
    }
}

impl ProjectSources {
    /// What a user's variables say, for a user who is in `folder`.
    #[must_use]
    pub fn of(environment: &Environment, folder: impl Into<PathBuf>) -> Self {
        let folder = folder.into();
        let text = |name: &str| Some(environment.filled(name)?.to_string_lossy().into_owned());
        let separator = text("COMPOSE_PATH_SEPARATOR").unwrap_or_else(|| ":".to_owned());
        let files = text("COMPOSE_FILE");
        let first = files
            .as_deref()
            .and_then(|files| files.split(separator.as_str()).next());
        Self {
            variable: text("COMPOSE_PROJECT_NAME"),
            file: first.filter(|file| !file.is_empty()).map(|file| folder.join(file)),
            folder,
        }
    }

    /// The folder of the project, and its name.
    fn resolve(&self) -> (PathBuf, String) {
        let file = self.file.clone().or_else(|| {
            self.folder
                .ancestors()
                .flat_map(|folder| FILES.map(|name| folder.join(name)))
                .find(|file| file.is_file())
        });
        let folder = file
            .as_deref()
            .and_then(Path::parent)
            .unwrap_or(&self.folder)
            .to_owned();
        let named = || {
            let from_dot_env = std::fs::read_to_string(folder.join(".env")).ok();
            from_dot_env
                .as_deref()
                .and_then(project_of_dot_env)
                .or_else(|| project_of_file(file.as_deref()?))
        };
        let base = folder.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = self.variable.clone().or_else(named).or(base).unwrap_or_default();
        (folder, normalised(&name))
    }
}

fn project_of_dot_env(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("COMPOSE_PROJECT_NAME="))
        .next_back()
        .map(|value| value.trim_matches(['"', '\'']).to_owned())
        .filter(|value| !value.is_empty())
}

fn project_of_file(file: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct File {
        name: Option<String>,
    }
    let text = std::fs::read_to_string(file).ok()?;
    // A file that compose would refuse names nothing; compose says so better than we could.
    let file: File = serde_saphyr::from_str(&text).ok()?;
    file.name.filter(|name| !name.is_empty() && !name.contains('$'))
}

/// A project's name as compose makes it of any text.
fn normalised(name: &str) -> String {
    let name = name.to_lowercase();
    let kept: String = name
        .chars()
        .filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(*c))
        .collect();
    kept.trim_start_matches(['-', '_']).to_owned()
}

impl ComposeService {
    /// The name of the container that is meant, of those that there are.
    ///
    /// # Errors
    /// What was found instead, and the command or the target that works.
    pub(super) fn choose(&self, all: &[Replica]) -> Result<String, (String, String)> {
        let (project, folder) = self.project_among(all);
        let of_project: Vec<&Replica> = all.iter().filter(|one| one.project == project).collect();
        if of_project.is_empty() {
            let projects: BTreeSet<&str> = all.iter().map(|one| one.project.as_str()).collect();
            let elsewhere = all.iter().find(|one| one.service == self.service);
            let advice = match elsewhere {
                Some(one) => format!("did you mean compose:{}/{}?", one.project, one.service),
                None => format!("start it with `docker compose up -d` in {}", folder.display()),
            };
            let there = if projects.is_empty() {
                "no project has any".to_owned()
            } else {
                format!("the projects there are {}", listed(projects))
            };
            return Err((
                format!("the compose project {project} has no containers; {there}"),
                advice,
            ));
        }
        let service = &self.service;
        let mut replicas: Vec<&Replica> = of_project
            .iter()
            .copied()
            .filter(|one| one.service == *service)
            .collect();
        replicas.sort_by_key(|one| one.number);
        if replicas.is_empty() {
            let services: BTreeSet<&str> = of_project.iter().map(|one| one.service.as_str()).collect();
            let advice = match nearest(service, services.iter().copied()) {
                Some(right) => format!("did you mean compose:{project}/{right}?"),
                None => format!("its services are {}", listed(services)),
            };
            return Err((
                format!("the compose project {project} has no container of a service {service}"),
                advice,
            ));
        }
        if let Some(index) = self.index {
            return match replicas.iter().find(|one| one.number == index) {
                Some(one) if one.runs() => Ok(one.name.clone()),
                Some(one) => Err(stopped(one)),
                None => Err((
                    format!("the service {service} of {project} has no container #{index}"),
                    format!("there are {}", targets(&replicas)),
                )),
            };
        }
        let running: Vec<&Replica> = replicas.iter().copied().filter(|one| one.runs()).collect();
        match running[..] {
            [] => Err(stopped(replicas[0])),
            [one] => Ok(one.name.clone()),
            _ => Err((
                format!(
                    "the service {service} of {project} has {} running containers",
                    running.len()
                ),
                format!("say which: {}", targets(&running)),
            )),
        }
    }

    /// The project, and the folder where compose would be run. A project that was started under another name, or by a
    /// compose that makes names otherwise, is known by the folder that its containers' labels hold.
    fn project_among(&self, all: &[Replica]) -> (String, PathBuf) {
        let (folder, name) = self.sources.resolve();
        if let Some(project) = &self.project {
            return (project.clone(), folder);
        }
        let by_folder = || {
            let real = folder.canonicalize().ok();
            let is_here = |its: &PathBuf| *its == folder || Some(its) == real.as_ref();
            let here = all.iter().filter(|one| one.folder.as_ref().is_some_and(is_here));
            let mut projects: BTreeSet<&String> = here.map(|one| &one.project).collect();
            projects.pop_first().filter(|_| projects.is_empty()).cloned()
        };
        let is_there = all.iter().any(|one| one.project == name);
        let other = if is_there { None } else { by_folder() };
        (other.unwrap_or(name), folder)
    }
}

fn stopped(one: &Replica) -> (String, String) {
    let Replica {
        service,
        project,
        state,
        ..
    } = one;
    let compose = if one.is_first {
        "docker-compose"
    } else {
        "docker compose"
    };
    (
        format!("the service {service} of {project} does not run ({state})"),
        format!("start it with `{compose} -p {project} start {service}`"),
    )
}

fn targets(replicas: &[&Replica]) -> String {
    let target = |one: &&Replica| {
        let note = if one.runs() { "" } else { " (does not run)" };
        format!("compose:{}/{}#{}{note}", one.project, one.service, one.number)
    };
    replicas.iter().map(target).collect::<Vec<_>>().join(", ")
}

fn listed(names: BTreeSet<&str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    fn replica(project: &str, service: &str, number: u32, state: &str) -> Replica {
        let labels = [
            (PROJECT, project),
            (SERVICE, service),
            (NUMBER, &number.to_string()),
            (ONE_OFF, "False"),
            (FOLDER, "/src/shop"),
            (VERSION, "1.29.2"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Replica::read(format!("{project}_{service}_{number}"), state, &labels.into()).unwrap()
    }

    fn shop() -> Vec<Replica> {
        vec![
            replica("shop", "app", 1, "running"),
            replica("shop", "worker", 1, "running"),
            replica("shop", "worker", 2, "running"),
            replica("shop", "worker", 3, "exited"),
            replica("shop", "cache", 1, "exited"),
            replica("blog", "web", 1, "running"),
        ]
    }

    fn service(project: Option<&str>, service: &str, index: Option<u32>) -> ComposeService {
        ComposeService {
            project: project.map(str::to_owned),
            service: service.to_owned(),
            index,
            sources: ProjectSources {
                folder: PathBuf::from("/nowhere/Shop"),
                ..ProjectSources::default()
            },
        }
    }

    #[test]
    fn a_service_with_one_container_is_that_container() {
        for project in [Some("shop"), None] {
            assert_eq!(service(project, "app", None).choose(&shop()).unwrap(), "shop_app_1");
        }
        assert_eq!(
            service(None, "worker", Some(2)).choose(&shop()).unwrap(),
            "shop_worker_2"
        );
    }

    #[test]
    fn what_cannot_be_used_says_what_can() {
        for (asked, words) in [
            (
                service(None, "cache", None),
                ["does not run (exited)", "`docker-compose -p shop start cache`"],
            ),
            (
                service(None, "worker", None),
                ["2 running containers", "compose:shop/worker#1, compose:shop/worker#2"],
            ),
            (
                service(None, "worker", Some(3)),
                ["does not run", "docker-compose -p shop start worker"],
            ),
            (
                service(None, "worker", Some(7)),
                ["no container #7", "compose:shop/worker#3 (does not run)"],
            ),
            (
                service(None, "ap", None),
                ["no container of a service ap", "did you mean compose:shop/app?"],
            ),
            (
                service(None, "postgres", None),
                ["no container", "its services are app, cache, worker"],
            ),
            (
                service(Some("blob"), "mail", None),
                [
                    "blob has no containers; the projects there are blog, shop",
                    "`docker compose up -d`",
                ],
            ),
            (
                service(Some("blob"), "web", None),
                ["no containers", "did you mean compose:blog/web?"],
            ),
        ] {
            let (reason, advice) = asked.choose(&shop()).unwrap_err();
            assert!(
                reason.contains(words[0]) && advice.contains(words[1]),
                "{reason}; {advice}"
            );
        }
    }

    #[test]
    fn a_container_of_run_is_no_service() {
        let labels = [(PROJECT, "shop"), (SERVICE, "app"), (ONE_OFF, "True")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(Replica::read("x".into(), "running", &labels.into()), None);
    }

    #[test]
    fn the_project_is_found_as_compose_finds_it() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("My Shop.2");
        std::fs::create_dir_all(folder.join("src/deep")).unwrap();
        let project = |sources: &ProjectSources| sources.resolve().1;
        let mut sources = ProjectSources {
            folder: folder.clone(),
            ..ProjectSources::default()
        };
        assert_eq!(project(&sources), "myshop2");
        std::fs::write(folder.join("docker-compose.yml"), "services: {app: {image: x}}\n").unwrap();
        sources.folder = folder.join("src/deep");
        assert_eq!(sources.resolve(), (folder.clone(), "myshop2".to_owned()));
        std::fs::write(folder.join("compose.yaml"), "name: rig\nservices: {}\n").unwrap();
        assert_eq!(project(&sources), "rig");
        std::fs::write(folder.join(".env"), "A=b\nCOMPOSE_PROJECT_NAME='dotted'\n").unwrap();
        assert_eq!(project(&sources), "dotted");
        sources.variable = Some("_Given".into());
        assert_eq!(project(&sources), "given");
        let environment = Environment::from_iter([("COMPOSE_FILE", "other/c.yaml:d.yaml")]);
        let sources = ProjectSources::of(&environment, &folder);
        assert_eq!(sources.resolve(), (folder.join("other"), "other".to_owned()));
    }

    #[test]
    fn a_project_under_another_name_is_known_by_its_folder() {
        let top = tempfile::tempdir().unwrap();
        let mut one = replica("started-otherwise", "app", 1, "running");
        one.folder = Some(top.path().to_owned());
        let mut asked = service(None, "app", None);
        asked.sources.folder = top.path().to_owned();
        assert_eq!(asked.choose(&[one.clone()]).unwrap(), one.name);
    }
}
