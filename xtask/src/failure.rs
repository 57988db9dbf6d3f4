//! Failure messages of commands: a stable code, what happened, and what to do.

use std::fmt;
use std::io;
use std::path::Path;

/// The failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: &'static str,
    what: String,
    remedy: String,
}

impl Failure {
    pub(crate) fn new(
        code: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { code, what: what.into(), remedy: remedy.into() }
    }

    /// A failed file operation: `doing` is "write", "create" and so on.
    pub(crate) fn file(doing: &str, path: &Path, cause: &io::Error) -> Self {
        let what = format!("could not {doing} {}: {cause}", path.display());
        if cause.kind() == io::ErrorKind::StorageFull {
            return Self::new("DISK_FULL", what, DISK_REMEDY);
        }
        Self::new("FILE_ERROR", what, "check the permissions of the checkout, then run it again")
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error [{}]: {}\n  what to do: {}", self.code, self.what, self.remedy)
    }
}

const DISK_REMEDY: &str = "free about 3 GB on this disk (8 GB for benchmarks), then run the same \
                           command again: it fetches what is still missing";

/// Derives a failure code from the error output of pip or npm.
pub(crate) fn from_fetch_output(what: &str, output: &str) -> Failure {
    const SIGNS: [(&str, &[&str], &str); 5] = [
        (
            "HASH_MISMATCH",
            &["DO NOT MATCH THE HASHES", "EINTEGRITY"],
            "the downloaded file does not match the pinned hash. Run it again; if it fails again, \
             the registry or a proxy changes the files: do not use them",
        ),
        ("DISK_FULL", &["No space left on device", "ENOSPC", "Errno 28"], DISK_REMEDY),
        (
            "NETWORK",
            &[
                "NewConnectionError",
                "ConnectTimeout",
                "ReadTimeout",
                "Max retries exceeded",
                "name resolution",
                "Connection refused",
                "Connection reset",
                "IncompleteRead",
                "ProxyError",
                "SSLError",
                "ENOTFOUND",
                "ECONNREFUSED",
                "ECONNRESET",
                "ETIMEDOUT",
                "EAI_AGAIN",
                // pip retried without a message: an index that offers no version at all could not
                // be read.
                "(from versions: none)",
            ],
            "the package registry could not be reached. Check the network, and the proxy and index \
             settings of pip and npm, then run it again",
        ),
        (
            "LOCK_MISMATCH",
            &["can only install packages when your package.json and package-lock.json"],
            "run `npm install` in the folder of that package.json and commit package-lock.json",
        ),
        (
            "PACKAGE_NOT_FOUND",
            &["No matching distribution", "Could not find a version", "E404", "ETARGET"],
            "the registry does not offer the pinned version for this machine. If you use a mirror, \
             ask it for the package; the pins are in xtask/, protocol/vectors/ and contracts/",
        ),
    ];
    let found = SIGNS.iter().find(|(_, signs, _)| signs.iter().any(|sign| output.contains(sign)));
    match found {
        Some((code, _, remedy)) => Failure::new(code, format!("{what} failed:\n{output}"), *remedy),
        None => Failure::new(
            "FETCH_FAILED",
            format!("{what} failed:\n{output}"),
            "read the lines above, then run it again: it fetches what is still missing",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_pip_and_npm_maps_to_stable_codes() {
        let table = [
            (
                "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
                "HASH_MISMATCH",
            ),
            ("npm error code EINTEGRITY", "HASH_MISMATCH"),
            ("OSError: [Errno 28] No space left on device", "DISK_FULL"),
            (
                // Without a network pip ends with "no matching distribution", after the actual
                // reason.
                "WARNING: Retrying ... NewConnectionError\nERROR: No matching distribution found",
                "NETWORK",
            ),
            ("npm error code EAI_AGAIN", "NETWORK"),
            ("ERROR: No matching distribution found for torch==2.11.0", "PACKAGE_NOT_FOUND"),
            ("Segmentation fault", "FETCH_FAILED"),
        ];
        for (output, code) in table {
            assert_eq!(from_fetch_output("fetching", output).code(), code, "{output}");
        }
    }

    #[test]
    fn a_failure_message_has_code_cause_and_remedy() {
        let failure = from_fetch_output("fetching libtorch", "No space left on device");
        let text = failure.to_string();
        assert!(text.starts_with("error [DISK_FULL]: fetching libtorch failed"), "{text}");
        assert!(text.contains("what to do: free about 3 GB"), "{text}");
    }
}
