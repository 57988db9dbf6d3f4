//! The files of a folder of images, and their classes.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use super::super::table::{Positions, TableFeatures};
use super::super::{CLASSES_MAX, LoadError, ROWS_MAX, Table};

/// Files that a system adds to folders, besides hidden ones.
const IGNORED_FILES: [&str; 2] = ["Thumbs.db", "desktop.ini"];

/// The files of a folder, class after class, and in the order of their names. The labels are the
/// names of the subfolders.
pub(in super::super) fn table(root: &Path) -> Result<Table, LoadError> {
    let real = root.canonicalize().map_err(|source| unreadable(root, source))?;
    let (mut files, mut classes, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for folder in entries(root, &real)? {
        if !folder.is_dir() {
            let why = "a file beside the folders of the classes; a folder of images has one \
                       subfolder for each class, and all images in them";
            return Err(invalid(&folder, why));
        }
        let name = class_name(&folder)?;
        let images = entries(&folder, &real)?;
        if images.is_empty() {
            return Err(invalid(&folder, "a class without images: remove the folder"));
        }
        if let Some(inner) = images.iter().find(|path| path.is_dir()) {
            return Err(invalid(inner, "a folder within a class: move its images one level up"));
        }
        labels.extend(std::iter::repeat_n(classes.len() as u32, images.len()));
        classes.push(name);
        files.extend(images);
        if files.len() > ROWS_MAX || classes.len() > CLASSES_MAX {
            let why = format!("more than {ROWS_MAX} images or {CLASSES_MAX} classes");
            return Err(invalid(root, why));
        }
    }
    if files.is_empty() {
        return Err(invalid(root, "no subfolders: it must have one for each class"));
    }
    Ok(Table {
        features: TableFeatures::Images(files),
        labels: super::labels(classes, labels),
        label: String::new(),
        classes_min: 0,
        positions: Positions::Rows(0),
    })
}

/// The paths in a folder in the order of their names, without hidden files. A link must not leave
/// `root`, which has no links.
fn entries(folder: &Path, root: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| unreadable(folder, source);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_ignored(&entry) {
            continue;
        }
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_symlink() {
            let target = path.canonicalize().map_err(|source| unreadable(&path, source))?;
            if !target.starts_with(root) {
                return Err(invalid(&path, "a symbolic link out of the folder: copy the file"));
            }
        }
        if paths.len() == ROWS_MAX {
            return Err(invalid(folder, format!("more than {ROWS_MAX} files")));
        }
        paths.push(path);
    }
    paths.sort_unstable();
    Ok(paths)
}

fn is_ignored(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let bytes = name.as_encoded_bytes();
    bytes.starts_with(b".") || IGNORED_FILES.iter().any(|ignored| bytes == ignored.as_bytes())
}

fn class_name(folder: &Path) -> Result<String, LoadError> {
    let name = folder.file_name().and_then(|name| name.to_str());
    let name = name.filter(|name| !name.chars().any(char::is_control));
    let why = "the name of a class must be UTF-8 without control characters: rename the folder";
    name.map(str::to_owned).ok_or_else(|| invalid(folder, why))
}

fn unreadable(path: &Path, source: std::io::Error) -> LoadError {
    LoadError::Unreadable { path: path.to_owned(), source }
}

fn invalid(path: &Path, why: impl Into<String>) -> LoadError {
    LoadError::ImageFolder { path: path.to_owned(), why: why.into() }
}
