//! The tools that Talaria brings along.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    CallContext, ToolCall, ToolHost, ToolSpec, patch, read_file, search_files, spill_files, terminal, web_extract,
    web_search, write_file,
};
use crate::web::{Web, WebOptions};

/// The built-in tool host: works on whatever target the call's workspace stands for.
pub struct BuiltinTools {
    specs: Vec<ToolSpec>,
    spill_dir: Option<PathBuf>,
    web: Arc<Web>,
    turns: patch::Turns,
}

impl BuiltinTools {
    /// `spill_dir` is the broker's own folder of spilled output, which `read_file` serves on
    /// every target.
    #[must_use]
    pub fn new(spill_dir: Option<PathBuf>) -> Self {
        Self {
            specs: vec![
                read_file::spec(),
                write_file::spec(),
                search_files::spec(),
                patch::spec(),
                terminal::spec(),
                web_search::spec(),
                web_extract::spec(),
            ],
            spill_dir,
            web: Arc::new(Web::new(WebOptions::default())),
            turns: patch::Turns::default(),
        }
    }

    /// What the web tools work with: providers, limits, proxies. By default they search nowhere and read public pages.
    #[must_use]
    pub fn with_web(self, options: WebOptions) -> Self {
        Self {
            web: Arc::new(Web::new(options)),
            ..self
        }
    }
}

#[async_trait]
impl ToolHost for BuiltinTools {
    fn tools(&self) -> &[ToolSpec] {
        &self.specs
    }

    async fn call(&self, call: ToolCall, context: &CallContext) -> Value {
        let names_spill = |folder: &PathBuf| spill_files::named(&call.arguments, folder).is_some();
        // What the target says of one of these is not the last word.
        let reply = context.reply.clone();
        let context = &CallContext {
            reply: reply.filter(|_| !self.spill_dir.as_ref().is_some_and(names_spill)),
            ..context.clone()
        };
        let result = match call.name.as_str() {
            "read_file" => read_file::call(&call.arguments, context, self.spill_dir.as_deref()).await,
            "write_file" => write_file::call(&call.arguments, context).await,
            "search_files" => search_files::call(&call.arguments, context).await,
            "patch" => patch::call(&call.arguments, context, &self.turns).await,
            "terminal" => terminal::call(&call.arguments, context).await,
            "web_search" => web_search::call(&call.arguments, context, &self.web).await,
            "web_extract" => web_extract::call(&call.arguments, context, &self.web, self.spill_dir.as_deref()).await,
            other => failure(format!("{other} is no built-in tool; use one that hermes_tools has")),
        };
        match &self.spill_dir {
            Some(folder) => spill_files::explain(result, &call.arguments, folder),
            None => result,
        }
    }

    fn passes_answers_on(&self) -> bool {
        true
    }
}

/// The result of a call that failed.
pub(super) fn failure(error: impl Into<String>) -> Value {
    json!({ "error": error.into() })
}

/// A string argument; the empty string when absent, which validation has ruled out.
pub(super) fn text<'a>(arguments: &'a serde_json::Map<String, Value>, name: &str) -> &'a str {
    arguments.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
pub(super) mod testing {
    //! A workspace over [`LocalFiles`] whose commands are answered by the test.

    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::approval::Names;
    use crate::link::Reply;
    use crate::tools::{
        ChangeError, CommandOutput, CommandRequest, Fetched, FileChange, Found, LocalFiles, Page, ReadRequest,
        SearchRequest, Workspace, WorkspaceError, Written, validate_arguments,
    };

    pub(in crate::tools) struct FakeWorkspace {
        files: LocalFiles,
        pub answer: Result<CommandOutput, WorkspaceError>,
        pub asked: Mutex<Vec<CommandRequest>>,
    }

    #[async_trait]
    impl Workspace for FakeWorkspace {
        fn folder(&self) -> Option<PathBuf> {
            None
        }
        async fn read_page(&self, request: ReadRequest, _: Option<&Arc<Reply>>) -> Result<Page, WorkspaceError> {
            self.files.read_page(request).await
        }
        async fn write(&self, path: &str, content: &str, _: Option<&Arc<Reply>>) -> Result<Written, WorkspaceError> {
            self.files.write(path, content).await
        }
        async fn search(&self, request: SearchRequest, _: Option<&Arc<Reply>>) -> Result<Found, WorkspaceError> {
            self.files.search(request).await
        }
        async fn names(
            &self,
            roots: Vec<String>,
            paths: Vec<String>,
        ) -> Result<(Vec<Names>, Vec<Names>), WorkspaceError> {
            Ok((self.files.root_names(&roots).await?, self.files.names(&paths).await?))
        }
        async fn fetch(&self, paths: Vec<String>) -> Result<Vec<Fetched>, WorkspaceError> {
            self.files.fetch(&paths).await
        }
        async fn change(&self, changes: Vec<FileChange>, _: Option<(&Arc<Reply>, &Value)>) -> Result<(), ChangeError> {
            self.files.change(changes).await
        }
        async fn run(
            &self,
            request: CommandRequest,
            _cancel: &CancellationToken,
        ) -> Result<CommandOutput, WorkspaceError> {
            self.asked.lock().unwrap().push(request);
            self.answer.clone()
        }
    }

    pub(in crate::tools) fn workspace(
        folder: &Path,
        answer: Result<CommandOutput, WorkspaceError>,
    ) -> Arc<FakeWorkspace> {
        let files = LocalFiles::new(folder, None);
        Arc::new(FakeWorkspace {
            files,
            answer,
            asked: Mutex::default(),
        })
    }

    pub(in crate::tools) fn silent() -> Result<CommandOutput, WorkspaceError> {
        Ok(CommandOutput {
            output: String::new(),
            truncation: None,
            exit_code: 0,
            error: None,
        })
    }

    /// Validates and calls a built-in tool, as the broker does.
    pub(in crate::tools) async fn call(
        host: &BuiltinTools,
        workspace: Arc<FakeWorkspace>,
        name: &str,
        arguments: Value,
    ) -> Value {
        let arguments = arguments.as_object().unwrap().clone();
        let spec = host.tools().iter().find(|spec| spec.name == name).unwrap();
        if let Err(error) = validate_arguments(spec, &arguments) {
            return failure(error);
        }
        let context = CallContext {
            cancel: CancellationToken::new(),
            workspace,
            reply: None,
        };
        host.call(
            ToolCall {
                name: name.into(),
                arguments,
            },
            &context,
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::{CallPath, check_specs, stub_source};

    #[test]
    fn a_configuration_knows_them_all() {
        let host = BuiltinTools::new(None);
        let names: Vec<&str> = host.tools().iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, crate::config::TOOLS);
    }

    #[test]
    fn signatures_are_those_of_the_contract() {
        let host = BuiltinTools::new(None);
        assert_eq!(check_specs(host.tools()), Ok(()));
        let specs: Vec<&ToolSpec> = host.tools().iter().collect();
        let source = stub_source(&specs, "", CallPath::Socket);
        for signature in [
            r#"def read_file(path: str, offset: "int | str" = 1, limit: int = 2000, raw: bool = False) -> dict:"#,
            "def write_file(path: str, content: str) -> dict:",
            r#"def search_files(pattern: str, target: str = "content", path: str = ".", "#,
            r#"def patch(path: "str | None" = None, old_string: "str | None" = None, new_string: "str | None" = None, replace_all: bool = False, mode: str = "replace", patch: "str | None" = None) -> dict:"#,
            r#"def terminal(command: str, timeout: "float | None" = None, workdir: "str | None" = None) -> dict:"#,
        ] {
            assert!(source.contains(signature), "{signature}");
        }
    }
}
