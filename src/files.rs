//! How many files the process may have open, which is also how many connections.

use crate::failure::Failure;

/// Files besides connections: journal, ledger, blobs on their way in and out.
const BESIDES: u64 = 512;

/// Raises the process's own limit to what the settings need, as far as the system lets it.
///
/// # Errors
/// `FILES_LIMIT`: how many it may have, and how many it needs.
#[cfg(unix)]
pub(crate) fn allow(connections_max: usize) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(BESIDES);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit is more than any.
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum };
    if maximum.is_none_or(|most| most >= needed) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    let most = maximum.or(current).unwrap_or_default();
    let message = format!(
        "connections_max = {connections_max} needs {needed} open files, and this process may have {most}: raise its \
         limit (LimitNOFILE= for systemd, `ulimit -n` in a shell), or lower connections_max"
    );
    Err(Failure::input("FILES_LIMIT", message).into())
}

#[cfg(not(unix))]
pub(crate) fn allow(_: usize) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_system_allows_is_refused_with_both_numbers() {
        allow(1).unwrap();
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        // Where there is no limit, everything is allowed.
        if let Some(most) = most.and_then(|most| usize::try_from(most).ok()) {
            let error = allow(most).unwrap_err();
            assert_eq!(crate::failure::verdict(&error).0, "FILES_LIMIT");
            assert!(error.to_string().contains(&most.to_string()), "{error}");
        }
    }
}
