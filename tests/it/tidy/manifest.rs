//! The parts of a Cargo.toml that the rules need: the crate's name and its dependencies.

/// The manifest of a crate.
pub(crate) struct Manifest {
    pub(crate) name: String,
    /// Dependencies of every kind and target, by crate name.
    pub(crate) dependencies: Vec<String>,
    /// Those that only tests, examples and benchmarks have.
    pub(crate) dev_dependencies: Vec<String>,
    pub(crate) has_workspace_lints: bool,
}

impl Manifest {
    pub(crate) fn parse(text: &str) -> Self {
        let mut manifest = Self {
            name: String::new(),
            dependencies: Vec::new(),
            dev_dependencies: Vec::new(),
            has_workspace_lints: false,
        };
        let mut section = String::new();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_end_matches(']').to_owned();
                if let Some(name) = named_in_header(&section) {
                    manifest.add(&section, name);
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let key = unquoted(key);
            if section == "package" && key == "name" {
                manifest.name = unquoted(value).to_owned();
            }
            if section == "lints" && key == "workspace" {
                manifest.has_workspace_lints = value.trim() == "true";
            }
            if is_dependencies(&section) {
                let plain = key.split('.').next().unwrap_or(key);
                let renamed = value.split("package").nth(1).and_then(|rest| rest.split('"').nth(1));
                manifest.add(&section, renamed.unwrap_or(unquoted(plain)));
            }
        }
        manifest
    }

    fn add(&mut self, section: &str, name: &str) {
        let is_dev = section.split('.').any(|part| part == "dev-dependencies");
        let list = if is_dev { &mut self.dev_dependencies } else { &mut self.dependencies };
        list.push(name.to_owned());
    }
}

/// `[dependencies]`, `[dev-dependencies]`, `[target.….build-dependencies]`; not
/// `[workspace.dependencies]`.
fn is_dependencies(section: &str) -> bool {
    section.ends_with("dependencies") && !section.starts_with("workspace")
}

/// The crate in `[dependencies.NAME]`.
fn named_in_header(section: &str) -> Option<&str> {
    let (before, name) = section.rsplit_once('.')?;
    is_dependencies(before).then_some(unquoted(name))
}

fn unquoted(text: &str) -> &str {
    text.trim().trim_matches('"')
}
