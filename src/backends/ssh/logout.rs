//! Whether a host ends what a login has started once its connection is gone, as `logind` does where it is set to.

use super::options::SshOptions;

/// The line that asks. Where there is no `logind` nothing of it is said.
pub(super) const ASK: &str = "exec /bin/sh -c 'PATH=$PATH:/usr/bin:/bin; echo; echo talaria-user $(id -un); \
    exec loginctl show-user -p KillUserProcesses -p KillExcludeUsers -p KillOnlyUsers 2>/dev/null'";

/// What was said, as a sentence for whoever lost a session so, or may; `None`: nothing is ended.
pub(super) fn warning(options: &SshOptions, printed: &str) -> Option<String> {
    let value = |name: &str| {
        printed
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let names = |name: &str| -> Vec<&str> { value(name).unwrap_or_default().split_whitespace().collect() };
    let user = value("talaria-user ")?;
    let only = names("KillOnlyUsers=");
    if value("KillUserProcesses=")? != "yes"
        || names("KillExcludeUsers=").contains(&user)
        || !only.is_empty() && !only.contains(&user)
    {
        return None;
    }
    Some(format!(
        "{} ends what a login has started once its connection is gone (KillUserProcesses=yes in its logind.conf): have \
         {user} exempted there (KillExcludeUsers={user}, or KillUserProcesses=no), and let its processes outlive its \
         logins (loginctl enable-linger {user})",
        options.target
    ))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_ended_is_warned() {
        let options = SshOptions::new("ssh:box", "box");
        for (printed, is_warned) in [
            (
                "motd\n\ntalaria-user bob\nKillUserProcesses=yes\nKillExcludeUsers=root\nKillOnlyUsers=\n",
                true,
            ),
            (
                "\ntalaria-user bob\nKillOnlyUsers=bob\nKillExcludeUsers=root\nKillUserProcesses=yes\n",
                true,
            ),
            (
                "\ntalaria-user root\nKillUserProcesses=yes\nKillExcludeUsers=root\nKillOnlyUsers=\n",
                false,
            ),
            (
                "\ntalaria-user bob\nKillUserProcesses=yes\nKillExcludeUsers=root ann bob\n",
                false,
            ),
            (
                "\ntalaria-user bob\nKillUserProcesses=yes\nKillExcludeUsers=root\nKillOnlyUsers=ann\n",
                false,
            ),
            (
                "\ntalaria-user bob\nKillUserProcesses=no\nKillExcludeUsers=root\n",
                false,
            ),
            ("\ntalaria-user bob\n", false),
            ("", false),
        ] {
            let warning = warning(&options, printed);
            assert_eq!(warning.is_some(), is_warned, "{printed}");
            if let Some(warning) = warning {
                assert!(warning.contains("loginctl enable-linger bob"), "{warning}");
            }
        }
        let asked = std::process::Command::new("sh").arg("-c").arg(ASK).output().unwrap();
        assert!(String::from_utf8_lossy(&asked.stdout).contains("\ntalaria-user "));
    }
}
