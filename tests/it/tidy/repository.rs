//! The files of this repository that are written by hand.

use std::fs;
use std::path::Path;

use super::manifest::Manifest;
use super::source::RustSource;

/// Folders of generated or downloaded files.
const SKIPPED: [&str; 3] = ["target", "node_modules", "data"];

/// The extensions of files that are written by hand.
const KINDS: [&str; 11] =
    ["rs", "toml", "py", "mjs", "js", "sh", "md", "sol", "yml", "css", "service"];

/// The one file in a hidden folder.
const CHECKS: &str = ".ci/run";

/// A text file, with its path relative to the root, with forward slashes.
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All text files of [`KINDS`], and the script of the checks.
pub(crate) struct Repository {
    pub(crate) files: Vec<TextFile>,
}

impl Repository {
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        collect(root, root, &mut files);
        files.push(read(root, &root.join(CHECKS)));
        files.sort_by(|a: &TextFile, b: &TextFile| a.path.cmp(&b.path));
        assert!(files.len() > 20, "only {} files: is {} the root?", files.len(), root.display());
        Self { files }
    }

    pub(crate) fn file(&self, path: &str) -> &TextFile {
        self.files
            .iter()
            .find(|file| file.path == path)
            .unwrap_or_else(|| panic!("there is no {path}"))
    }

    pub(crate) fn sources(&self) -> Vec<RustSource> {
        let rust = self.files.iter().filter(|file| file.path.ends_with(".rs"));
        rust.map(|file| RustSource::new(&file.path, &file.text)).collect()
    }

    /// The manifests of all our crates.
    pub(crate) fn manifests(&self) -> Vec<Manifest> {
        let manifests = self.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
        manifests.map(|file| Manifest::parse(&file.text)).collect()
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<TextFile>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || SKIPPED.contains(&name.as_str()) && !is_source_folder(&path) {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, files);
            continue;
        }
        if path.extension().is_some_and(|found| KINDS.iter().any(|known| found == *known)) {
            files.push(read(root, &path));
        }
    }
}

fn read(root: &Path, path: &Path) -> TextFile {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let relative = path.strip_prefix(root).expect("it lies below the root");
    TextFile { path: relative.to_string_lossy().replace('\\', "/"), text }
}

/// `learning/src/data/` is a module; `learning/data/` is data.
fn is_source_folder(path: &Path) -> bool {
    path.components().any(|component| component.as_os_str() == "src")
}
