//! The code of a trainer: a folder of plain files, and its digest.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use florin_protocol::Digest;

use super::TrainerError;

/// The file of the folder that is run.
pub const PROGRAM: &str = "trainer";
/// Largest number of files and folders of a trainer.
pub const CODE_FILES_MAX: usize = 10_000;
/// Largest size of a trainer's files together, in bytes.
pub const CODE_BYTES_MAX: u64 = 256 << 20;
/// Domain of the digest.
const CONTEXT: &str = "florin v1 trainer";
/// Whether any of these bits is set, a file is executable.
const EXECUTABLE: u32 = 0o111;

/// The digest of a trainer's code: of the relative path, the executable bit and the bytes of each
/// file, in the order of the paths.
///
/// # Errors
/// [`TrainerError::Code`] for a link, a special file, a path that is not UTF-8, too much code, or a
/// folder without an executable [`PROGRAM`].
pub fn code_digest(folder: &Path) -> Result<Digest, TrainerError> {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    let mut bytes_left = CODE_BYTES_MAX;
    let mut has_program = false;
    for path in files(folder)? {
        let wrong = |why: &str| code_error(&path, why);
        let unread = |error: std::io::Error| code_error(&path, &error.to_string());
        let relative = path.strip_prefix(folder).unwrap_or(&path);
        let name = relative.to_str().ok_or_else(|| wrong("its name is not UTF-8: rename it"))?;
        let is_executable =
            fs::metadata(&path).map_err(unread)?.permissions().mode() & EXECUTABLE != 0;
        has_program |= name == PROGRAM && is_executable;
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(unread)?;
        file.take(bytes_left.saturating_add(1)).read_to_end(&mut bytes).map_err(unread)?;
        let length = bytes.len() as u64;
        bytes_left = bytes_left.checked_sub(length).ok_or_else(|| {
            wrong("the code has more than 256 MiB: keep libraries elsewhere, see --trainer-bind")
        })?;
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(&[u8::from(is_executable)]).update(&length.to_le_bytes()).update(&bytes);
    }
    if !has_program {
        let why = "must be a folder with an executable file `trainer`";
        return Err(code_error(folder, why));
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}

/// All files below a folder, in the order of their paths.
fn files(folder: &Path) -> Result<Vec<PathBuf>, TrainerError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    let mut entries = 0;
    while let Some(folder) = folders.pop() {
        let unread = |error: std::io::Error| code_error(&folder, &error.to_string());
        for entry in fs::read_dir(&folder).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            entries += 1;
            if entries > CODE_FILES_MAX {
                let why = "has more than 10000 files: keep libraries elsewhere, see --trainer-bind";
                return Err(code_error(&folder, why));
            }
            let (kind, path) = (entry.file_type().map_err(unread)?, entry.path());
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                files.push(path);
            } else {
                let why = "is a link or a special file, which no digest covers: copy the file here";
                return Err(code_error(&path, why));
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn code_error(path: &Path, why: &str) -> TrainerError {
    TrainerError::Code { path: path.to_owned(), why: why.to_owned() }
}
