//! The two ways into the kernel that need care: a system call by number, and a clone that shares our memory.

use core::ffi::{c_int, c_long, c_void};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::Pid;

/// Makes a system call by number, with the kernel's own error instead of libc's −1 and `errno`.
///
/// # Safety
/// The caller vouches for the arguments exactly as the kernel reads them for call number `nr`.
pub(crate) unsafe fn syscall(nr: c_long, args: [usize; 5]) -> Result<usize, Errno> {
    // SAFETY: passed on to the caller.
    let ret = unsafe { libc::syscall(nr, args[0], args[1], args[2], args[3], args[4]) };
    if ret == -1 {
        // SAFETY: libc's errno of this thread. In a child that shares our memory this is the suspended parent
        // thread's errno, which nobody reads before this thread writes it again.
        let code = unsafe { *libc::__errno_location() };
        return Err(Errno::from_raw_os_error(code));
    }
    Ok(ret.cast_unsigned() as usize)
}

/// Reads a process id as the kernel writes it. (`Pid::from_raw` takes 0 for none, and must not see less.)
pub(crate) fn pid(raw: i32) -> Option<Pid> {
    Pid::from_raw(raw.max(0))
}

/// Not libc's constant of this name, whose type is too narrow for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Flags that decide what a clone shares and where it is born.
#[derive(Clone, Copy)]
pub(crate) struct CloneSpec {
    pub(crate) flags: u64,
    pub(crate) exit_signal: c_int,
    pub(crate) cgroup: Option<RawFd>,
}

impl CloneSpec {
    fn args(self, pidfd: &mut RawFd) -> libc::clone_args {
        let mut flags = self.flags | libc::CLONE_PIDFD as u64;
        if self.cgroup.is_some() {
            flags |= CLONE_INTO_CGROUP;
        }
        libc::clone_args {
            flags,
            pidfd: std::ptr::from_mut(pidfd) as u64,
            child_tid: 0,
            parent_tid: 0,
            exit_signal: self.exit_signal as u64,
            stack: 0,
            stack_size: 0,
            tls: 0,
            set_tid: 0,
            set_tid_size: 0,
            cgroup: self.cgroup.map_or(0, |fd| fd as u64),
        }
    }
}

/// What a clone returned in the parent.
pub(crate) struct Cloned {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

fn cloned(ret: usize, pidfd: RawFd) -> Result<Cloned, Errno> {
    let pid = i32::try_from(ret).ok().and_then(pid).ok_or(Errno::CHILD)?;
    // SAFETY: the clone succeeded with CLONE_PIDFD, so the kernel stored a new descriptor that only we know.
    Ok(Cloned { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })
}

/// Clones without sharing memory: the fork of a process, from which both sides return. `None` in the child.
///
/// # Safety
/// The process must have exactly one thread: the child owns a copy of every lock, and nobody would ever
/// release one that another thread held.
pub(crate) unsafe fn clone_fork(spec: CloneSpec) -> Result<Option<Cloned>, Errno> {
    let mut pidfd: RawFd = -1;
    let args = spec.args(&mut pidfd);
    // SAFETY: `args` and `pidfd` outlive the call; without CLONE_VM and a stack of its own the child
    // continues here on its own copy of this stack.
    let ret = unsafe {
        syscall(
            libc::SYS_clone3,
            [std::ptr::from_ref(&args) as usize, size_of::<libc::clone_args>(), 0, 0, 0],
        )?
    };
    // SAFETY: a plain read; volatile because the kernel wrote it through an address the compiler has lost
    // sight of.
    let pidfd = unsafe { std::ptr::read_volatile(&raw const pidfd) };
    if ret == 0 { Ok(None) } else { cloned(ret, pidfd).map(Some) }
}

/// What the child of [`clone_vfork`] runs. It must end in exec or `_exit`.
pub(crate) type ChildMain = unsafe extern "C" fn(*mut c_void) -> !;

/// Clones a child that shares our memory and runs `main(arg)` on a stack of its own, while this thread is
/// suspended until the child has executed a program or ended. All signals are blocked meanwhile, in the child
/// too, so that none of our handlers can run twice in one memory.
///
/// The cost does not depend on how much memory we have touched, for nothing is copied.
///
/// # Safety
/// `main` must neither allocate, nor take a lock, nor unwind: other threads run on beside it and may hold
/// anything. `arg` must be what `main` expects and outlive the call.
pub(crate) unsafe fn clone_vfork(
    spec: CloneSpec,
    main: ChildMain,
    arg: *mut c_void,
) -> Result<Cloned, Errno> {
    let stack = Stack::new()?;
    let mut pidfd: RawFd = -1;
    let shared = CloneSpec { flags: spec.flags | (libc::CLONE_VM | libc::CLONE_VFORK) as u64, ..spec };
    let mut args = shared.args(&mut pidfd);
    args.stack = stack.base as u64;
    args.stack_size = stack.len as u64;

    let mask = AllBlocked::new();
    // SAFETY: `args`, the stack and `pidfd` live until this returns, and the vfork keeps us here until the
    // child uses none of them any more. The rest is the caller's promise.
    let ret = unsafe { enter(&args, main, arg) };
    drop(mask);
    if ret < 0 {
        return Err(Errno::from_raw_os_error(i32::try_from(-ret).unwrap_or(libc::EINVAL)));
    }
    // SAFETY: as in `clone_fork`.
    let pidfd = unsafe { std::ptr::read_volatile(&raw const pidfd) };
    cloned(ret.cast_unsigned(), pidfd)
}

/// What a process between two knows: how to make the one that stays, and what became of that.
struct Middle {
    args: libc::clone_args,
    main: ChildMain,
    arg: *mut c_void,
    made: isize,
}

/// The process between: makes the one that stays, and ends. It is subject to the same rules as any child here.
unsafe extern "C" fn middle_main(middle: *mut c_void) -> ! {
    // SAFETY: `clone_vfork_orphan` passes its own value and is suspended until we have gone.
    let middle = unsafe { &mut *middle.cast::<Middle>() };
    // SAFETY: what `args` names lives as long as that call, which outlives both of us; the rest is its caller's
    // promise.
    middle.made = unsafe { enter(&middle.args, middle.main, middle.arg) };
    // SAFETY: ends this process at once and runs none of the parent's exit handlers.
    unsafe { libc::_exit(0) }
}

/// As [`clone_vfork`], but the child is no child of ours: a process between makes it and ends, so that whoever adopts
/// orphans has it as soon as it runs. Returns its process id.
///
/// # Safety
/// As for [`clone_vfork`].
pub(crate) unsafe fn clone_vfork_orphan(
    spec: CloneSpec,
    main: ChildMain,
    arg: *mut c_void,
) -> Result<Pid, Errno> {
    let stack = Stack::new()?;
    // A descriptor would be one in the table of the process between, which is gone when anyone could use it.
    let mut unused: RawFd = -1;
    let shared = CloneSpec { flags: spec.flags | (libc::CLONE_VM | libc::CLONE_VFORK) as u64, ..spec };
    let mut args = shared.args(&mut unused);
    args.flags &= !(libc::CLONE_PIDFD as u64);
    args.pidfd = 0;
    args.stack = stack.base as u64;
    args.stack_size = stack.len as u64;
    let mut middle = Middle { args, main, arg, made: -(libc::EAGAIN as isize) };
    let between = CloneSpec { flags: 0, exit_signal: 0, cgroup: None };
    // SAFETY: `middle_main` keeps to the rules and gets what it expects, which lives until this returns.
    let between = unsafe { clone_vfork(between, middle_main, (&raw mut middle).cast())? };
    let _ = crate::wait::wait_pidfd(between.pidfd.as_fd(), crate::wait::Children::All, false);
    // SAFETY: a plain read; volatile because another process wrote it.
    let made = unsafe { std::ptr::read_volatile(&raw const middle.made) };
    if made < 0 {
        return Err(Errno::from_raw_os_error(i32::try_from(-made).unwrap_or(libc::EINVAL)));
    }
    i32::try_from(made).ok().and_then(pid).ok_or(Errno::CHILD)
}

/// The system call and the child's first instructions. They are one block, because the child returns from the
/// call on an empty stack: between call and jump no compiled code may touch it.
///
/// # Safety
/// As [`clone_vfork`]; `args` must name a stack.
#[cfg(target_arch = "x86_64")]
unsafe fn enter(args: &libc::clone_args, main: ChildMain, arg: *mut c_void) -> isize {
    let ret: isize;
    // SAFETY: the parent falls through to the end with only rax, rcx and r11 changed, which is declared. The
    // child has the same registers on a fresh 16-byte-aligned stack, ends its chain of frames and never
    // returns.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => ret,
            in("rdi") args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") arg,
            in("r13") main,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    ret
}

/// As on x86-64.
///
/// # Safety
/// As [`clone_vfork`]; `args` must name a stack.
#[cfg(target_arch = "aarch64")]
unsafe fn enter(args: &libc::clone_args, main: ChildMain, arg: *mut c_void) -> isize {
    let ret: isize;
    // SAFETY: the parent falls through with only x0 changed. The child has the same registers on a fresh
    // aligned stack, ends its chain of frames and never returns.
    unsafe {
        core::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x20",
            "blr x21",
            "brk #1",
            "2:",
            inlateout("x0") std::ptr::from_ref(args) as isize => ret,
            in("x1") size_of::<libc::clone_args>(),
            in("x8") libc::SYS_clone3,
            in("x20") arg,
            in("x21") main,
            lateout("x30") _,
        );
    }
    ret
}

/// The child's stack, with a page below it that faults instead of letting an overflow write into our heap.
struct Stack {
    map: *mut c_void,
    map_len: usize,
    base: usize,
    len: usize,
}

impl Stack {
    /// Ample for an unoptimised build; only the pages touched exist.
    const LEN: usize = 64 * 1024;

    fn new() -> Result<Self, Errno> {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
        let guard = rustix::param::page_size();
        let map_len = Self::LEN + guard;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let map = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                map_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::STACK | MapFlags::NORESERVE,
            )?
        };
        let stack = Self { map, map_len, base: map as usize + guard, len: Self::LEN };
        // SAFETY: the lowest page of the mapping just made, which nothing uses yet.
        unsafe { rustix::mm::mprotect(map, guard, MprotectFlags::empty())? };
        Ok(stack)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: our own mapping. The vfork has ended: the child runs another program, or none.
        // An unmap of a whole mapping of our own cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.map, self.map_len) };
    }
}

/// The kernel's signal set: one bit for each of 64 signals.
pub(crate) type KernelSigset = u64;

/// Sets this thread's signal mask and returns the one before. Unlike libc's call this reaches the two signals
/// that glibc keeps for itself.
pub(crate) fn set_mask(mask: KernelSigset) -> KernelSigset {
    let mut old: KernelSigset = 0;
    // SAFETY: both sets are live and of the size we state. With valid pointers the call cannot fail.
    let _ = unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                std::ptr::from_ref(&mask) as usize,
                std::ptr::from_mut(&mut old) as usize,
                size_of::<KernelSigset>(),
                0,
            ],
        )
    };
    old
}

/// Blocks all signals for this thread until dropped.
struct AllBlocked(KernelSigset);

impl AllBlocked {
    fn new() -> Self {
        Self(set_mask(KernelSigset::MAX))
    }
}

impl Drop for AllBlocked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// The signals whose disposition may be another than the default, by their bits; all until somebody has looked.
pub(crate) static NOT_DEFAULT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Sets all signals of this process back to their default disposition, ignored ones included.
pub(crate) fn default_dispositions() {
    // An all-zero `struct sigaction` of the kernel says SIG_DFL, no flags, empty mask, on every architecture.
    let zero = [0u64; 4];
    let suspects = NOT_DEFAULT.load(Ordering::Relaxed);
    for signal in (1..=64usize).filter(|signal| suspects & 1 << (signal - 1) != 0) {
        // SAFETY: the kernel reads at most the 32 bytes given and writes nothing. KILL and STOP are refused
        // with an error, which is as it should be.
        let _ = unsafe {
            syscall(libc::SYS_rt_sigaction, [signal, zero.as_ptr() as usize, 0, size_of::<KernelSigset>(), 0])
        };
    }
}
