// The modules of the target side, in the order of their imports. Read by `build.rs` too, which packs them.

/// Of every session. `surroundings` to `kernel`, and what follows them, run in processes of their own.
pub(super) const SESSION: &[&str] = &[
    "wire",
    "processes",
    "trees",
    "control_groups",
    "scarce",
    "folders",
    "event_loop",
    "capture",
    "jobs",
    "kernels",
    "pipe",
    "verbs",
    "supervisor",
    "watch",
    "guard",
    "surroundings",
    "cell_sources",
    "kernel",
    "worker",
    "workspace",
    "rights",
    "text_file",
    "page",
    "aside",
    "whole_file",
    "changes",
    "search_globs",
    "search_walk",
    "search_lines",
    "search",
    "searchers",
];

/// What a session needs beside them when its messages travel through a directory.
pub(super) const DIRECTORY: &[&str] = &[
    "notation",
    "frames",
    "directory",
    "places",
    "survey",
    "alarm",
    "lease",
    "fence",
    "orphans",
    "keeper",
    "event_log",
    "spool",
    "log_reader",
    "answers",
    "requests",
    "blobs",
    "outbox",
    "relay",
    "detached",
];

/// What it needs where no process can be started beside another: each is a command of its own.
pub(super) const ALONE: &[&str] = &["marked", "alone", "alone_cell"];
