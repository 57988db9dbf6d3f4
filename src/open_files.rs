//! The limit on open files of the process, which also limits its connections.

use crate::failure::Failure;

/// Open files besides connections: journal, ledger, blobs in transfer.
const OTHER_FILES: u64 = 512;

/// Raises the process's soft limit (`RLIMIT_NOFILE`) to what the settings require.
///
/// # Errors
/// `FILES_LIMIT`: the limit and the required number.
#[cfg(unix)]
pub fn raise_limit(connections_max: usize) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = u64::try_from(connections_max).unwrap_or(u64::MAX).saturating_add(OTHER_FILES);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means unlimited.
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum };
    if maximum.is_none_or(|most| most >= needed) && setrlimit(Resource::Nofile, raised).is_ok() {
        return Ok(());
    }
    let most = maximum.or(current).unwrap_or_default();
    let message = format!(
        "connections_max = {connections_max} needs {needed} open files, but the limit of this \
         process is {most}: raise the limit (LimitNOFILE= for systemd, `ulimit -n` in a shell), or \
         lower connections_max"
    );
    Err(Failure::input("FILES_LIMIT", message).into())
}

#[cfg(not(unix))]
pub fn raise_limit(_: usize) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_above_the_system_maximum_is_refused_with_both_numbers() {
        raise_limit(1).unwrap();
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        // Without a maximum, every limit is allowed.
        if let Some(most) = most.and_then(|most| usize::try_from(most).ok()) {
            let error = raise_limit(most).unwrap_err();
            assert_eq!(crate::failure::classify(&error).0, "FILES_LIMIT");
            assert!(error.to_string().contains(&most.to_string()), "{error}");
        }
    }
}
