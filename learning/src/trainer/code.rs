//! The code of a trainer: plain files, and the archive in which they travel.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Cursor, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use zip::write::FileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::TrainerError;

/// The file of the folder that is run.
pub const PROGRAM: &str = "trainer";
/// Largest number of files and folders of a trainer.
pub const CODE_FILES_MAX: usize = 10_000;
/// Largest size of a trainer's files together, in bytes.
pub const CODE_BYTES_MAX: u64 = 256 << 20;
/// Largest path of a file in an archive, and part of it, in bytes.
const NAME_BYTES_MAX: usize = 1_024;
const PART_BYTES_MAX: usize = 255;
/// Whether any of these bits is set, a file is executable.
const EXECUTABLE: u32 = 0o111;
/// The modes of files in an archive.
const MODES: [u32; 2] = [0o644, 0o755];

/// The files of a trainer, by their relative paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainerCode {
    files: BTreeMap<String, CodeFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct CodeFile {
    is_executable: bool,
    bytes: Vec<u8>,
}

impl TrainerCode {
    /// Reads the code in a folder.
    ///
    /// # Errors
    /// [`TrainerError::Code`] for a link, a special file, a path that is not UTF-8, too much code, or a
    /// folder without an executable [`PROGRAM`].
    pub fn read(folder: &Path) -> Result<Self, TrainerError> {
        let mut bytes_left = CODE_BYTES_MAX;
        let mut found = BTreeMap::new();
        for path in files(folder)? {
            let wrong = |why: &str| code_error(&path, why);
            let unread = |error: std::io::Error| code_error(&path, &error.to_string());
            let relative = path.strip_prefix(folder).unwrap_or(&path);
            let name =
                relative.to_str().ok_or_else(|| wrong("its name is not UTF-8: rename it"))?;
            let mode = fs::metadata(&path).map_err(unread)?.permissions().mode();
            let mut bytes = Vec::new();
            let file = File::open(&path).map_err(unread)?;
            file.take(bytes_left.saturating_add(1)).read_to_end(&mut bytes).map_err(unread)?;
            bytes_left = bytes_left.checked_sub(bytes.len() as u64).ok_or_else(|| {
                wrong(
                    "the code has more than 256 MiB: keep libraries elsewhere, see --trainer-bind",
                )
            })?;
            let file = CodeFile { is_executable: mode & EXECUTABLE != 0, bytes };
            found.insert(name.to_owned(), file);
        }
        let code = Self { files: found };
        code.check_program().map_err(|why| code_error(folder, why))?;
        Ok(code)
    }

    /// Reads an archive that [`to_bytes`](Self::to_bytes) wrote. No other bytes are accepted, so that
    /// one code has one digest.
    ///
    /// # Errors
    /// The first mistake, in words.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let damaged = |error: zip::result::ZipError| format!("is no zip archive: {error}");
        let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(damaged)?;
        if archive.len() > CODE_FILES_MAX {
            return Err(format!("has more than {CODE_FILES_MAX} files"));
        }
        let mut files = BTreeMap::new();
        // The files are not compressed, and do not overlap if they are as they are written here.
        let mut bytes_left = bytes.len() as u64;
        for number in 0..archive.len() {
            let entry = archive.by_index(number).map_err(damaged)?;
            let name = entry.name().to_owned();
            let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
            let path: PathBuf = Path::new(&name).components().collect();
            let is_short = name.len() <= NAME_BYTES_MAX
                && name.split('/').all(|part| (1..=PART_BYTES_MAX).contains(&part.len()));
            let is_plain = path.components().all(plain) && path.to_str() == Some(&name);
            if !is_short {
                return Err(format!("has a file {name:?}, whose name is too long or empty"));
            }
            if !is_plain || name.contains(['\\', '\0']) {
                return Err(format!("has a file {name:?}, whose name leaves the folder"));
            }
            if entry.compression() != CompressionMethod::Stored || entry.size() > bytes_left {
                return Err(format!("has a file {name:?} that is compressed"));
            }
            bytes_left -= entry.size();
            let is_executable = entry.unix_mode().unwrap_or_default() & EXECUTABLE != 0;
            let mut bytes = Vec::new();
            let limit = entry.size();
            entry.take(limit).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
            files.insert(name, CodeFile { is_executable, bytes });
        }
        let code = Self { files };
        code.check_program()?;
        let folders = code.names().flat_map(|name| Path::new(name).ancestors().skip(1));
        if let Some(both) =
            folders.filter_map(Path::to_str).find(|path| code.files.contains_key(*path))
        {
            return Err(format!("has {both:?} as a file and as a folder"));
        }
        match code.to_bytes() == bytes {
            true => Ok(code),
            false => Err("is not in the form that this program writes".to_owned()),
        }
    }

    /// A zip archive of the files, in the order of their paths, uncompressed and without times: equal
    /// code has equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, file) in &self.files {
            let options = FileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .last_modified_time(DateTime::default())
                .unix_permissions(MODES[usize::from(file.is_executable)]);
            // Writing to memory does not fail, and each file is far below 4 GiB.
            let _ = writer.start_file(name, options);
            let _ = writer.write_all(&file.bytes);
        }
        writer.finish().map(Cursor::into_inner).unwrap_or_default()
    }

    /// The BLAKE3 digest of [`to_bytes`](Self::to_bytes): by it a person accepts the code.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.to_bytes()).as_bytes()
    }

    /// Writes the files into an empty folder.
    ///
    /// # Errors
    /// The system's.
    pub fn write_to(&self, folder: &Path) -> std::io::Result<()> {
        for (name, file) in &self.files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            let mode = MODES[usize::from(file.is_executable)];
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(mode).open(&path)?.write_all(&file.bytes)?;
            // The mask of the process may have taken bits away.
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    /// The first file with these bytes.
    pub fn file_with(&self, bytes: &[u8]) -> Option<&str> {
        self.files.iter().find(|(_, file)| file.bytes == bytes).map(|(name, _)| name.as_str())
    }

    /// The paths of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    fn check_program(&self) -> Result<(), &'static str> {
        match self.files.get(PROGRAM) {
            Some(file) if file.is_executable => Ok(()),
            _ => Err("must be a folder with an executable file `trainer` (chmod +x trainer)"),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn code() -> TrainerCode {
        let file = |is_executable, text: &str| CodeFile { is_executable, bytes: text.into() };
        let program = (PROGRAM.to_owned(), file(true, "#!/bin/sh\n"));
        let module = ("lib/model.py".to_owned(), file(false, "x = 1\n"));
        TrainerCode { files: [program, module].into() }
    }

    #[test]
    fn code_survives_its_archive_and_its_folder() {
        let (folder, code) = (tempfile::tempdir().unwrap(), code());
        code.write_to(folder.path()).unwrap();
        assert_eq!(TrainerCode::read(folder.path()).unwrap(), code);
        assert_eq!(TrainerCode::from_bytes(&code.to_bytes()), Ok(code.clone()));
        let file = folder.path().join("lib/model.py");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let changed = TrainerCode::read(folder.path()).unwrap();
        assert_ne!(changed.digest(), code.digest(), "the executable bit is in the digest");
    }

    #[test]
    fn archives_of_another_form_are_refused() {
        let write = |name: &str, method: CompressionMethod, text: &[u8]| {
            let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
            let options = FileOptions::default()
                .compression_method(method)
                .last_modified_time(DateTime::default())
                .unix_permissions(0o755);
            for name in [PROGRAM, name] {
                writer.start_file(name, options).unwrap();
                writer.write_all(text).unwrap();
            }
            writer.finish().unwrap().into_inner()
        };
        let stored = CompressionMethod::Stored;
        let longer = [code().to_bytes(), vec![0]].concat();
        let zeros = vec![0; 1 << 20];
        let table = [
            (b"PK".to_vec(), "is no zip archive"),
            (longer, "is n"),
            (write("../outside", stored, b""), "leaves the folder"),
            (write("/etc/passwd", stored, b""), "too long or empty"),
            (write("a\\b", stored, b""), "leaves the folder"),
            (write("zeros", CompressionMethod::Deflated, &zeros), "compressed"),
            (write("a/./b", stored, b""), "leaves the folder"),
            (write("a/", stored, b""), "too long or empty"),
            (write(&"a".repeat(256), stored, b""), "too long or empty"),
            (write("trainer/a", stored, b""), "as a file and as a folder"),
            // Not in the order of the names.
            (write("a", stored, b""), "form"),
        ];
        for (bytes, message) in table {
            let error = TrainerCode::from_bytes(&bytes).unwrap_err();
            assert!(error.contains(message), "{message}: {error}");
        }
        let empty = ZipWriter::new(Cursor::new(Vec::new())).finish().unwrap().into_inner();
        assert!(TrainerCode::from_bytes(&empty).unwrap_err().contains("executable file"));
    }
}
