//! Lazy binding of libtorch. A program that is linked with libtorch runs its initialisers at each start:
//! they register some three thousand operators, a quarter of a second. Most commands compute nothing.
//!
//! The C++ of `torch-sys` and of this crate becomes a shared library, which is a constant of the program. Each
//! function of its C interface becomes a jump to an address; at the first call of any of them, `bind.c`
//! loads libtorch and the library, and fills the addresses. No code of `tch` changes.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Saves the registers of arguments, binds all functions, and goes to the one on the stack.
const BIND_AND_GO: &str = "
florin_lazy_go:
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    pushq %rax
    subq $136, %rsp
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    call florin_lazy_bind@PLT
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $136, %rsp
    popq %rax
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    popq %r11
    leaq florin_lazy_addresses(%rip), %r10
    jmp *(%r10,%r11,8)
";

/// The libraries of libtorch that the C++ needs. That of CUDA is loaded later, where there is a GPU.
const LIBRARIES: [&str; 2] = ["c10", "torch_cpu"];

/// Whether the target has lazy binding: elsewhere the program is linked with libtorch.
pub(crate) fn is_supported() -> bool {
    let is = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    // torch-sys links a static libtorch into the program.
    !is("LIBTORCH_STATIC", "1")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
        && is("CARGO_CFG_TARGET_ARCH", "x86_64")
}

/// Links the shared library of `ours` and of torch-sys's C++, and adds its jumps to the program.
pub(crate) fn bind(libtorch: &Path, out: &Path, ours: &Path) -> Result<(), String> {
    let theirs = archive_of_torch_sys(out)?;
    let published = std::env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from);
    let folder = published.unwrap_or_else(|| libtorch.join("lib"));
    let library = out.join("libflorin_torch.so");
    let link = |more: &[&Path]| {
        let mut link = cc::Build::new().cpp(true).warnings(false).get_compiler().to_command();
        link.args(["-shared", "-s", "-o"]).arg(&library);
        link.arg("-Wl,--whole-archive").arg(ours).arg(&theirs).arg("-Wl,--no-whole-archive");
        link.args(more).arg("-L").arg(&folder);
        run(link.args(LIBRARIES.map(|name| format!("-l{name}"))))
    };
    // The first library shows which functions of Rust the C++ calls.
    link(&[])?;
    let callbacks = names(&library, "--undefined-only", "U", |name| name.starts_with("tch_"))?;
    let calls = out.join("callbacks.S");
    write(&calls, &text_of_callbacks(&callbacks))?;
    link(&[&calls])?;
    let functions = names(&library, "--defined-only", "T", |name| {
        !name.starts_with('_') && !callbacks.iter().any(|callback| callback == name)
    })?;
    let assembly = out.join("jumps.S");
    write(&assembly, &text(&library, &functions, &callbacks)?)?;
    cc::Build::new()
        .cargo_metadata(false)
        .file(assembly)
        .file("lazy_binding/bind.c")
        .compile("florin_lazy_torch");
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static:+whole-archive=florin_lazy_torch");
    Ok(())
}

/// The newest archive that torch-sys's build script compiled beside this one's output: it runs before.
fn archive_of_torch_sys(out: &Path) -> Result<PathBuf, String> {
    let builds = out.ancestors().nth(2).ok_or("the output has no parents")?;
    let entries = fs::read_dir(builds).map_err(|error| error.to_string())?;
    let archives = entries.filter_map(Result::ok).filter_map(|entry| {
        let is_its_own = entry.file_name().to_string_lossy().starts_with("torch-sys-");
        let archive = entry.path().join("out/libtch.a");
        let written = fs::metadata(&archive).and_then(|data| data.modified()).ok()?;
        is_its_own.then_some((written, archive))
    });
    let newest = archives.max().map(|(_, archive)| archive);
    newest.ok_or_else(|| format!("there is no libtch.a of torch-sys in {}", builds.display()))
}

/// The names of a library's dynamic symbols of a kind, without those that C++ mangles.
fn names(
    library: &Path,
    which: &str,
    kind: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<String>, String> {
    let text = run(Command::new("nm").args(["-D", which]).arg(library))?;
    let names = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        let (name, found) = (words.next()?, words.next()?);
        (found == kind && !name.starts_with("_Z") && is_wanted(name)).then(|| name.to_owned())
    });
    Ok(names.collect())
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// The assembly in the library of the functions of Rust that it calls: jumps to addresses that the program fills.
fn text_of_callbacks(callbacks: &[String]) -> String {
    let mut jumps = String::new();
    for (at, name) in callbacks.iter().enumerate() {
        let _ = write!(
            jumps,
            ".globl {name}\n.type {name}, @function\n{name}:\n    jmp *.Lcallbacks+8*{at}(%rip)\n"
        );
    }
    format!(
        ".text\n{jumps}.data\n.balign 8\n.globl florin_lazy_callbacks\n\
         .type florin_lazy_callbacks, @object\n.size florin_lazy_callbacks, {}\n\
         florin_lazy_callbacks:\n.Lcallbacks:\n    .skip {}\n.section .note.GNU-stack,\"\",@progbits\n",
        8 * callbacks.len().max(1),
        8 * callbacks.len().max(1)
    )
}

/// The assembly: the library, its jumps, the addresses, which lead to the binding at first, and the names.
fn text(library: &Path, functions: &[String], callbacks: &[String]) -> Result<String, String> {
    let (mut jumps, mut addresses, mut names, mut strings) =
        (String::new(), String::new(), String::new(), String::new());
    for (at, name) in functions.iter().enumerate() {
        let _ = write!(
            jumps,
            ".globl {name}\n.type {name}, @function\n{name}:\n    jmp *florin_lazy_addresses+8*{at}(%rip)\n\
             .Lfirst{at}:\n    pushq ${at}\n    jmp florin_lazy_go\n"
        );
        let _ = writeln!(addresses, "    .quad .Lfirst{at}");
        let _ = writeln!(names, "    .quad .Lname{at}");
        let _ = writeln!(strings, ".Lname{at}: .asciz \"{name}\"");
    }
    let called: String = callbacks.iter().map(|name| format!("    .quad {name}\n")).collect();
    let mut libraries = String::new();
    for name in LIBRARIES {
        let _ = writeln!(libraries, "    .quad .Lneeded_{name}");
        let _ = writeln!(strings, ".Lneeded_{name}: .asciz \"lib{name}.so\"");
    }
    // A cache of compilations looks at this text, and not at the file that it includes.
    let bytes = fs::read(library).map_err(|error| error.to_string())?;
    let mut hasher = std::hash::DefaultHasher::new();
    bytes.hash(&mut hasher);
    let content = hasher.finish();
    Ok(format!(
        ".text\n{BIND_AND_GO}\n{jumps}\n\
         .data\n.balign 8\n.globl florin_lazy_addresses\nflorin_lazy_addresses:\n{addresses}\n\
         .section .data.rel.ro,\"aw\"\n.balign 8\n\
         .globl florin_lazy_names\nflorin_lazy_names:\n{names}    .quad 0\n\
         .globl florin_lazy_called\nflorin_lazy_called:\n{called}    .quad 0\n\
         .globl florin_lazy_needed\nflorin_lazy_needed:\n{libraries}    .quad 0\n\
         .section .rodata\n{strings}\
         .quad {content}\n.balign 8\n.globl florin_lazy_library_bytes\nflorin_lazy_library_bytes: .quad .Lend - florin_lazy_library\n\
         .balign 16\n.globl florin_lazy_library\nflorin_lazy_library:\n.incbin \"{}\"\n.Lend:\n\
         .section .note.GNU-stack,\"\",@progbits\n",
        library.display()
    ))
}

/// The output of a command.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_owned();
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", OsStr::to_string_lossy(&name));
    let output = command.output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
