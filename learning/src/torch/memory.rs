//! The memory that the host has free.

use std::fs;

/// The share of the host's free memory that intermediate results take, as its inverse.
pub(super) const FREE_MEMORY_DIVISOR: u64 = 2;

/// Bytes of memory that the process can take: of the machine, or what its control group has left.
/// `None` on other systems than Linux.
pub(super) fn available_bytes() -> Option<u64> {
    let machine =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| free_of_machine(&text))?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = group_folders(&groups).into_iter().filter_map(|(folder, names)| {
        let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
        let (most, current) = read(names[0]).zip(read(names[1]))?;
        left_of_group(&most, &current, &read("memory.stat").unwrap_or_default())
    });
    Some(left.fold(machine, u64::min))
}

/// The files of a limit and of its use, in both versions of control groups.
const GROUP_FILES: [[&str; 2]; 2] =
    [["memory.max", "memory.current"], ["memory.limit_in_bytes", "memory.usage_in_bytes"]];

/// The folders of the groups that `/proc/self/cgroup` names, and those of a container's own root.
fn group_folders(groups: &str) -> Vec<(String, [&'static str; 2])> {
    let [second, first] = GROUP_FILES;
    let mut folders = vec![("/sys/fs/cgroup".to_owned(), second)];
    folders.push(("/sys/fs/cgroup/memory".to_owned(), first));
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        match controllers {
            "" => folders.push((format!("/sys/fs/cgroup{path}"), second)),
            "memory" => folders.push((format!("/sys/fs/cgroup/memory{path}"), first)),
            _ => {}
        }
    }
    folders
}

/// `MemAvailable` of `/proc/meminfo`.
fn free_of_machine(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1_024)
}

/// A control group's limit without the memory that it uses; `None` if it has no limit. Pages of
/// files, which `memory.stat` counts, are free: the system takes them back on demand.
fn left_of_group(most: &str, current: &str, stat: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let files = stat.lines().filter_map(|line| {
        line.strip_prefix("active_file ").or(line.strip_prefix("inactive_file ")).and_then(number)
    });
    let used = number(current)?.saturating_sub(files.sum());
    Some(number(most)?.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_from_the_files_of_linux() {
        let text = "MemTotal:       100 kB\nMemAvailable:   64 kB\n";
        assert_eq!(free_of_machine(text), Some(65_536));
        assert_eq!(free_of_machine("MemTotal: 5 kB"), None);
        assert_eq!(left_of_group("100\n", "30\n", ""), Some(70));
        assert_eq!(left_of_group("30", "100", ""), Some(0));
        assert_eq!(left_of_group("max\n", "30", ""), None);
        let stat = "anon 5\ninactive_file 40\nactive_file 50\nfile_dirty 3\n";
        assert_eq!(left_of_group("100\n", "99\n", stat), Some(91));
        let groups = "4:memory:/job\n3:cpu,cpuacct:/job\n0::/user.slice\n";
        let folders = group_folders(groups).into_iter().map(|(folder, names)| (folder, names[0]));
        let named = [
            ("/sys/fs/cgroup/memory/job", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup/user.slice", "memory.max"),
        ];
        let named = named.map(|(folder, name)| (folder.to_owned(), name));
        assert_eq!(folders.skip(2).collect::<Vec<_>>(), named);
    }
}
