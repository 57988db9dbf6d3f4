//! The archive that `torch.export.save` writes: a zip of stored entries. Nothing in it is executed,
//! and no pickle is opened.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use serde::de::DeserializeOwned;
use zip::{CompressionMethod, ZipArchive};

use super::error::GraphErrorKind::{TooLarge, Unreadable, Version};
use super::exported::{ExportedProgram, SCHEMA_MAJOR, VersionOnly, WeightTable};
use super::import;
use super::weights::WeightSource;
use super::{ENTRIES_MAX, Graph, GraphError, GraphWeights, JSON_BYTES_MAX};

/// The version of the archive's layout.
const ARCHIVE_VERSION: &str = "0";
/// The entry with the description of the graph.
const DESCRIPTION: &str = "models/model.json";
/// Largest of the small texts, in bytes.
const TEXT_BYTES_MAX: u64 = 1_024;

/// Reads a model that `torch.export.save` wrote.
///
/// # Errors
/// [`GraphError`] for a file that is no such archive, for one of another version, and for a graph
/// with anything that is not supported.
pub fn read_archive(path: &Path) -> Result<(Graph, GraphWeights), GraphError> {
    let file = File::open(path).map_err(|error| {
        GraphError::new(Unreadable, format!("{} cannot be read: {error}", path.display()))
    })?;
    read_archive_from(file)
}

/// Reads such a model from memory or from an open file.
///
/// # Errors
/// As [`read_archive`].
pub fn read_archive_from(source: impl Read + Seek) -> Result<(Graph, GraphWeights), GraphError> {
    let mut archive = Archive::open(source)?;
    archive.check_version()?;
    let graph = read_description(&archive.read_json(DESCRIPTION)?)?;
    let weights = archive.read_table("data/weights/model_weights_config.json")?;
    let constants = archive.read_table("data/constants/model_constants_config.json")?;
    let source = WeightSource::new(&weights, &constants);
    let weights = source.read_all(&graph, &mut |(name, bytes)| archive.read(name, bytes))?;
    Ok((graph, weights))
}

/// Reads the description of a graph, the JSON `models/model.json` of an archive, without weights.
///
/// # Errors
/// As [`read_archive`].
pub fn read_description(json: &[u8]) -> Result<Graph, GraphError> {
    let version: VersionOnly = parse(DESCRIPTION, json)?;
    let (major, minor) = (version.schema_version.major, version.schema_version.minor);
    if major != SCHEMA_MAJOR {
        let why = format!(
            "the model is in version {major}.{minor} of PyTorch's export format, and version \
             {SCHEMA_MAJOR} is supported: export it with PyTorch 2.8 to 2.11"
        );
        return Err(GraphError::new(Version, why));
    }
    let program: ExportedProgram = parse(DESCRIPTION, json)?;
    import::import(program)
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, GraphError> {
    serde_json::from_slice(bytes).map_err(|error| {
        GraphError::malformed(format!("{name} is not as PyTorch writes it: {error}"))
    })
}

/// An archive whose entries are checked: stored, without overlaps, with names that occur once.
pub(super) struct Archive<R> {
    zip: ZipArchive<R>,
    /// The folder in which all entries are, with its slash.
    root: String,
    /// The number of each entry, by its name without the root.
    entries: BTreeMap<String, usize>,
}

impl<R: Read + Seek> Archive<R> {
    pub(super) fn open(source: R) -> Result<Self, GraphError> {
        let mut zip = ZipArchive::new(source).map_err(|error| {
            GraphError::archive(format!(
                "the file is no .pt2 archive of `torch.export.save`: {error}"
            ))
        })?;
        if zip.len() > ENTRIES_MAX {
            let why =
                format!("the archive has {} entries, at most {ENTRIES_MAX} are read", zip.len());
            return Err(GraphError::new(TooLarge, why));
        }
        let (mut entries, mut ranges) = (BTreeMap::new(), Vec::with_capacity(zip.len()));
        for number in 0..zip.len() {
            let entry = zip
                .by_index_raw(number)
                .map_err(|error| GraphError::archive(format!("entry {number}: {error}")))?;
            let name = entry.name().to_owned();
            let refuse = |why: &str| Err(GraphError::archive(format!("entry {name:?} {why}")));
            if entry.compression() != CompressionMethod::Stored
                || entry.size() != entry.compressed_size()
            {
                return refuse("is compressed; PyTorch stores entries uncompressed");
            }
            if name.contains("..") || name.starts_with('/') || name.contains(['\\', '\0']) {
                return refuse("has a name that leaves the archive");
            }
            let end = entry.data_start().checked_add(entry.size());
            let Some(end) = end else { return refuse("ends beyond the file") };
            ranges.push((entry.header_start(), end));
            if entries.insert(name.clone(), number).is_some() {
                return refuse("occurs twice");
            }
        }
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err(GraphError::archive("entries of the archive overlap"));
        }
        let root = entries.keys().next().and_then(|name| name.split_once('/'));
        let root = root.map(|(root, _)| format!("{root}/")).unwrap_or_default();
        let within = entries.into_iter().map(|(name, number)| match name.strip_prefix(&root) {
            Some(name) => Ok((name.to_owned(), number)),
            None => {
                Err(GraphError::archive(format!("entry {name:?} is not in the folder {root:?}")))
            }
        });
        let entries = within.collect::<Result<_, _>>()?;
        Ok(Self { zip, root, entries })
    }

    pub(super) fn check_version(&mut self) -> Result<(), GraphError> {
        let format = self.read_text("archive_format")?;
        if format != "pt2" {
            let why =
                format!("the archive's format is {format:?}, not that of `torch.export.save`");
            return Err(GraphError::archive(why));
        }
        let version = self.read_text("archive_version")?;
        if version != ARCHIVE_VERSION {
            let why = format!(
                "the archive has version {version:?}, and version {ARCHIVE_VERSION} is supported"
            );
            return Err(GraphError::new(Version, why));
        }
        match self.read_text("byteorder")?.as_str() {
            "little" => Ok(()),
            order => Err(GraphError::archive(format!(
                "the archive's numbers are {order:?}-endian: export the model on a little-endian \
                 machine"
            ))),
        }
    }

    /// Names without the root, and numbers, of all entries in the order of the file.
    pub(super) fn entries(&self) -> Vec<(String, usize)> {
        let mut entries: Vec<(String, usize)> =
            self.entries.iter().map(|(name, number)| (name.clone(), *number)).collect();
        entries.sort_unstable_by_key(|(_, number)| *number);
        entries
    }

    /// The name of an entry with the root.
    pub(super) fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }

    /// An entry by its number.
    pub(super) fn entry(&mut self, number: usize) -> Result<zip::read::ZipFile<'_>, GraphError> {
        self.zip
            .by_index(number)
            .map_err(|error| GraphError::archive(format!("entry {number}: {error}")))
    }

    fn read_text(&mut self, name: &str) -> Result<String, GraphError> {
        let bytes = self.read(name, TEXT_BYTES_MAX)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| GraphError::archive(format!("entry {name} is no text")))?;
        Ok(text.trim().to_owned())
    }

    fn read_json(&mut self, name: &str) -> Result<Vec<u8>, GraphError> {
        self.read(name, JSON_BYTES_MAX)
    }

    /// The table of weights or constants; empty if the archive has none.
    pub(super) fn read_table(&mut self, name: &str) -> Result<WeightTable, GraphError> {
        if !self.entries.contains_key(name) {
            return Ok(WeightTable { config: BTreeMap::new() });
        }
        parse(name, &self.read_json(name)?)
    }

    pub(super) fn read(&mut self, name: &str, most: u64) -> Result<Vec<u8>, GraphError> {
        let Some(&number) = self.entries.get(name) else {
            let why = format!(
                "the archive has no entry {}{name}: write it with `torch.export.save`",
                self.root
            );
            return Err(GraphError::archive(why));
        };
        let damaged =
            |error: &dyn std::fmt::Display| GraphError::archive(format!("entry {name}: {error}"));
        let mut entry = self.zip.by_index(number).map_err(|error| damaged(&error))?;
        if entry.size() > most {
            let why = format!("entry {name} has {} bytes, at most {most} are read", entry.size());
            return Err(GraphError::new(TooLarge, why));
        }
        let mut bytes = Vec::new();
        // The checksum is compared at the end.
        entry.read_to_end(&mut bytes).map_err(|error| damaged(&error))?;
        Ok(bytes)
    }
}
