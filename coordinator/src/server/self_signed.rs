//! A self-signed certificate for trials: made once in the data folder and reused at every start.
//!
//! No authority vouches for it. A participant trusts it because it has the file or has compared the
//! fingerprint.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use florin_store::sync_folder;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};

use crate::config::Config;

/// Why the self-signed certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    /// It cannot be made or stored.
    #[error("self-signed certificate in {file}: {1} [CERTIFICATE_NOT_CREATED]", file = .0.display())]
    NotCreated(PathBuf, String),
    /// The existing one is for other names.
    #[error(
        "the self-signed certificate in {file} is for {1}, not for {2}: delete the folder to make \
         a new one, and give it to every participant [CERTIFICATE_NAME_MISMATCH]",
        file = .0.display()
    )]
    NameMismatch(PathBuf, String, String),
}

/// The files of a certificate and its key.
pub(super) struct CertificatePaths {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// The loopback names.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The files of the certificate and key; makes them if they do not exist.
pub(super) fn load_or_create(config: &Config) -> Result<CertificatePaths, SelfSignedError> {
    let folder = config.data.join("tls");
    let file = |name: &str| folder.join(name);
    let (certificate, key, names) = (file("certificate.pem"), file("key.pem"), file("names"));
    let failed = |error: io::Error| SelfSignedError::NotCreated(folder.clone(), error.to_string());
    let wanted = required_names(config);
    // The certificate is written last: if it exists, all files exist.
    if certificate.try_exists().map_err(failed)? {
        check_names(&folder, &std::fs::read_to_string(&names).map_err(failed)?, &wanted)?;
        return Ok(CertificatePaths { certificate, key });
    }
    let odd = |error: rcgen::Error| SelfSignedError::NotCreated(folder.clone(), error.to_string());
    let pair = KeyPair::generate().map_err(odd)?;
    let mut params =
        CertificateParams::new(wanted.iter().cloned().collect::<Vec<_>>()).map_err(odd)?;
    params.distinguished_name.push(DnType::CommonName, "florin coordinator, for trials");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let made = params.self_signed(&pair).map_err(odd)?;
    let lines: Vec<&str> = wanted.iter().map(String::as_str).collect();
    std::fs::create_dir_all(&folder).and_then(|()| sync_folder(&config.data)).map_err(failed)?;
    write(&key, &pair.serialize_pem()).map_err(failed)?;
    write(&names, &lines.join("\n")).map_err(failed)?;
    write(&certificate, &made.pem()).map_err(failed)?;
    Ok(CertificatePaths { certificate, key })
}

/// The loopback names, the listen address and the names in the settings.
fn required_names(config: &Config) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = LOOPBACK_NAMES.map(str::to_owned).into();
    let ip = config.listen.ip();
    if !ip.is_unspecified() {
        names.insert(ip.to_string());
    }
    names.extend(config.tls.names.iter().cloned());
    names
}

fn check_names(
    folder: &Path,
    known: &str,
    wanted: &BTreeSet<String>,
) -> Result<(), SelfSignedError> {
    let known: BTreeSet<&str> = known.lines().collect();
    let missing = wanted.iter().find(|name| !known.contains(name.as_str()));
    missing.map_or(Ok(()), |name| {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        Err(SelfSignedError::NameMismatch(folder.to_owned(), known, name.clone()))
    })
}

/// Writes a file atomically and durably, readable only by its owner.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = options.open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    // Before the next file is written: the certificate must not survive a power failure without the
    // files before it.
    path.parent().map_or(Ok(()), sync_folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_signed_certificate_is_made_once_and_reused_for_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new("192.0.2.7:7700".parse().unwrap(), dir.path().to_owned());
        config.tls.self_signed = true;
        config.tls.names = vec!["market.example".to_owned()];
        let open = |config: &Config| super::super::tls::Tls::open(config);
        let first = open(&config).unwrap().unwrap();
        let again = open(&config).unwrap().unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_eq!(first.fingerprint().len(), 32 * 3 - 1);
        config.tls.names.clear();
        open(&config).unwrap();
        config.tls.names = vec!["other.example".to_owned()];
        let error = open(&config).err().unwrap().to_string();
        assert!(
            error.contains("other.example") && error.ends_with("[CERTIFICATE_NAME_MISMATCH]"),
            "{error}"
        );
        // After a crash before the last file is written, all files are made again.
        std::fs::remove_file(first.certificate()).unwrap();
        assert_ne!(open(&config).unwrap().unwrap().fingerprint(), first.fingerprint());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let key = std::fs::metadata(dir.path().join("tls/key.pem")).unwrap();
            assert_eq!(key.permissions().mode() & 0o777, 0o600);
        }
        config.data = dir.path().join("tls/key.pem");
        let error = open(&config).err().unwrap().to_string();
        assert!(error.ends_with("[CERTIFICATE_NOT_CREATED]"), "{error}");
        config.data = dir.path().join("names");
        config.tls.names = vec!["no\u{fc}ascii".to_owned()];
        assert!(open(&config).err().unwrap().to_string().ends_with("[CERTIFICATE_NOT_CREATED]"));
    }
}
