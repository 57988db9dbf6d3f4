//! NumPy's `.npz` files, as `numpy.savez` and `numpy.savez_compressed` write them: a zip archive of
//! `.npy` files.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::file::limited;
use super::{LoadError, Table, npy};

/// Most arrays of an archive.
const ARRAYS_MAX: usize = 1_000;
/// Most names of arrays in a message.
const NAMES_SHOWN_MAX: usize = 20;
const ENDING: &str = ".npy";

/// Rows of numbers and their labels, from two arrays of an archive. Without a name, the features
/// are the only array besides the labels.
pub(super) fn table(path: &Path, features: Option<&str>, labels: &str) -> Result<Table, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.to_owned(), source };
    let malformed = |why: String| LoadError::NpzMalformed { path: path.to_owned(), why };
    let file = File::open(path).map_err(unreadable)?;
    let mut archive = ZipArchive::new(file).map_err(|error| malformed(error.to_string()))?;
    if archive.len() > ARRAYS_MAX {
        return Err(malformed(format!("it has {} arrays; at most {ARRAYS_MAX}", archive.len())));
    }
    let mut names: Vec<String> = archive
        .file_names()
        .filter_map(|name| name.strip_suffix(ENDING))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    let features = select(&names, features, labels).map_err(malformed)?;
    let x = read_array(&mut archive, path, features)?;
    let y = read_array(&mut archive, path, labels)?;
    npy::table_of((&array_path(path, features), &x), (&array_path(path, labels), &y))
}

/// The name of the array of features. The error is a sentence.
pub(super) fn select<'a>(
    names: &'a [String],
    features: Option<&'a str>,
    labels: &str,
) -> Result<&'a str, String> {
    let is_there = |name: &str| names.iter().any(|there| there == name);
    let shown =
        names.iter().take(NAMES_SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    for name in [features.unwrap_or(labels), labels] {
        if !is_there(name) {
            return Err(format!("it has no array `{name}`; its arrays are: {shown}"));
        }
    }
    if let Some(features) = features {
        return Ok(features);
    }
    let mut others = names.iter().filter(|name| *name != labels);
    match (others.next(), others.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(format!(
            "it must have one array besides `{labels}`, or write npz:FILE#FEATURES,LABELS; its \
             arrays are: {shown}"
        )),
    }
}

/// The place of an array in messages.
fn array_path(path: &Path, name: &str) -> PathBuf {
    path.join(format!("{name}{ENDING}"))
}

fn read_array(
    archive: &mut ZipArchive<impl Read + Seek>,
    path: &Path,
    name: &str,
) -> Result<Vec<u8>, LoadError> {
    let place = array_path(path, name);
    let malformed = |why: String| LoadError::NpzMalformed {
        path: path.to_owned(),
        why: format!("{name}: {why}"),
    };
    let entry = archive
        .by_name(&format!("{name}{ENDING}"))
        .map_err(|error| malformed(error.to_string()))?;
    limited(entry, &place, |error| malformed(error.to_string()))
}
