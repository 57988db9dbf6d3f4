//! What a person reads when a command cannot go on: a stable code, what happened, and what to do.

use std::fmt;
use std::io;
use std::path::Path;

/// The end of a command.
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

    /// A file operation that failed: `doing` is "write", "create" and so on.
    pub(crate) fn file(doing: &str, path: &Path, cause: &io::Error) -> Self {
        let what = format!("could not {doing} {}: {cause}", path.display());
        if cause.kind() == io::ErrorKind::StorageFull {
            return Self::new("DISK_FULL", what, DISK_REMEDY);
        }
        Self::new("FILE", what, "check the permissions of the checkout, then run it again")
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

const DISK_REMEDY: &str = "free about 3 GB on this disk (8 GB for benchmarks), then run the same command again: it starts \
                           over with what is missing";

/// Puts a code to what pip or npm said before they gave up.
pub(crate) fn of_fetching(what: &str, said: &str) -> Failure {
    const SIGNS: [(&str, &[&str], &str); 5] = [
        (
            "HASH_MISMATCH",
            &["DO NOT MATCH THE HASHES", "EINTEGRITY"],
            "what arrived is not what this checkout pins. Run it again; if it stays so, the registry \
             or something on the way to it changes files: do not use them",
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
                // pip has retried in silence: an index that offers no version at all was not read.
                "(from versions: none)",
            ],
            "the package registry could not be reached. Check the network, and pip's and npm's proxy \
             and index settings, then run it again",
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
    let found = SIGNS.iter().find(|(_, signs, _)| signs.iter().any(|sign| said.contains(sign)));
    match found {
        Some((code, _, remedy)) => Failure::new(code, format!("{what} failed:\n{said}"), *remedy),
        None => Failure::new(
            "FETCH",
            format!("{what} failed:\n{said}"),
            "read the lines above, then run it again: it starts over with what is missing",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pip_and_npm_say_becomes_a_stable_code() {
        let table = [
            (
                "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
                "HASH_MISMATCH",
            ),
            ("npm error code EINTEGRITY", "HASH_MISMATCH"),
            ("OSError: [Errno 28] No space left on device", "DISK_FULL"),
            (
                // Without a network pip ends on "no matching distribution"; the reason comes first.
                "WARNING: Retrying ... NewConnectionError\nERROR: No matching distribution found",
                "NETWORK",
            ),
            ("npm error code EAI_AGAIN", "NETWORK"),
            ("ERROR: No matching distribution found for torch==2.11.0", "PACKAGE_NOT_FOUND"),
            ("Segmentation fault", "FETCH"),
        ];
        for (said, code) in table {
            assert_eq!(of_fetching("fetching", said).code(), code, "{said}");
        }
    }

    #[test]
    fn a_failure_says_its_code_what_happened_and_what_to_do() {
        let failure = of_fetching("fetching libtorch", "No space left on device");
        let text = failure.to_string();
        assert!(text.starts_with("error [DISK_FULL]: fetching libtorch failed"), "{text}");
        assert!(text.contains("what to do: free about 3 GB"), "{text}");
    }
}
