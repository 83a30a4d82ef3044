//! As root: everything once more as `nobody`, who has no cgroups, no other users and smaller pipes.

use crate::support::{is_root, keeper_program, misbehave, modes_ran, note, tmp};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const NOBODY: u32 = 65534;

/// These run as `nobody`, too: whatever depends on the containment mode or on rights.
const AGAIN: [&str; 6] = ["ends::", "trees::", "stops::", "losses::", "input::", "output::"];

/// A folder that anybody can reach. What lies below a closed folder, such as a root's home, is of no use.
fn reachable(wanted: PathBuf) -> PathBuf {
    let open = |folder: &Path| {
        std::fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o005 == 0o005)
    };
    match wanted.ancestors().all(open) {
        true => wanted,
        false => std::env::temp_dir(),
    }
}

#[test]
fn all_modes_as_nobody() {
    if !is_root() {
        // The tests have run as another user already.
        return;
    }
    let folder = reachable(tmp()).join(format!("nobody-{}", std::process::id()));
    let programs = folder.join("programs");
    std::fs::create_dir_all(&programs).unwrap();
    let torture = programs.join("torture");
    for (from, name) in [
        (keeper_program(), "outlast-hand"),
        (misbehave(), "misbehave"),
        (std::env::current_exe().unwrap(), "torture"),
    ] {
        std::fs::copy(from, programs.join(name)).unwrap();
        std::fs::set_permissions(programs.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for folder in [&folder, &programs] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let output = Command::new(&torture)
        .args(AGAIN)
        .args(["--test-threads", "3"])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("OUTLAST_TORTURE_TMP", &folder)
        .env("OUTLAST_TORTURE_PROGRAMS", &programs)
        .envs(std::env::var_os("OUTLAST_TORTURE_SEED").map(|seed| ("OUTLAST_TORTURE_SEED", seed)))
        .current_dir(&folder)
        // Without groups of its own this drops root's, too.
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "as nobody: {}\n{text}", output.status);
    let ran = std::fs::read_to_string(folder.join(modes_ran().file_name().unwrap())).unwrap_or_default();
    for mode in ["subreaper", "pid_namespace"] {
        assert!(
            ran.contains(&format!("containment {mode} ran as uid {NOBODY}: ok")),
            "{mode} never ran as nobody:\n{text}"
        );
    }
    ran.lines().for_each(note);
    std::fs::remove_dir_all(&folder).unwrap();
}
