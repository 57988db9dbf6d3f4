//! The functions of the OTF2 library, version 3, loaded when an archive is written. The declarations
//! follow its headers; `otf2-print` reads the result in a test.
#![expect(unsafe_code, reason = "a C library that is loaded at run time")]

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use libloading::Library as SharedObject;

use super::Otf2Error;
use super::regions::{LocationAction, LocationEvent, StringTable};

/// The variable that names the library's file.
const VARIABLE: &str = "FLORIN_OTF2";
/// Names of the library: upstream's, and Debian's.
const NAMES: [&str; 4] =
    ["libotf2.so.10", "libotf2.so", "libopen-trace-format2.so.10", "libopen-trace-format2.so"];

const FILE_MODE_WRITE: u8 = 0;
const SUBSTRATE_POSIX: u8 = 1;
const COMPRESSION_NONE: u8 = 1;
const FLUSH: u8 = 1;
const CHUNK_EVENTS: u64 = 1 << 20;
const CHUNK_DEFINITIONS: u64 = 4 << 20;
const ROLE_FUNCTION: u8 = 1;
const PARADIGM_USER: u8 = 1;
/// OTF2 has no messages without a paradigm; MPI's are those that viewers draw.
const PARADIGM_MPI: u8 = 4;
const GROUP_COMM_LOCATIONS: u8 = 4;
const GROUP_COMM: u8 = 5;
const GROUP_PROCESS: u8 = 1;
const LOCATION_THREAD: u8 = 1;
const UNDEFINED: u32 = u32::MAX;
const SUCCESS: c_int = 0;
/// Ticks of the clock in a second.
const NANOSECONDS: u64 = 1_000_000_000;

type PreFlush = extern "C" fn(*mut c_void, u8, u64, *mut c_void, bool) -> u8;

/// `OTF2_FlushCallbacks`.
#[repr(C)]
struct FlushCallbacks {
    pre_flush: PreFlush,
    /// Without it no event records the time of a flush.
    post_flush: Option<extern "C" fn(*mut c_void, u8, u64) -> u64>,
}

static FLUSH_CALLBACKS: FlushCallbacks = FlushCallbacks { pre_flush: flush, post_flush: None };

extern "C" fn flush(_: *mut c_void, _: u8, _: u64, _: *mut c_void, _: bool) -> u8 {
    FLUSH
}

/// Declares the functions, and loads them by their names.
macro_rules! functions {
    ($($field:ident $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The loaded library.
        pub(crate) struct Library {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Stays loaded as long as the functions.
            _object: SharedObject,
        }

        impl Library {
            fn from_object(object: SharedObject) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the types are those of the library's headers, version 3.
                    $($field: unsafe { *object.get(concat!($symbol, "\0"))? },)*
                    _object: object,
                })
            }
        }
    };
}

type Handle = *mut c_void;

functions! {
    open "OTF2_Archive_Open" (*const c_char, *const c_char, u8, u64, u64, u8, u8) -> Handle;
    set_flush "OTF2_Archive_SetFlushCallbacks" (Handle, *const FlushCallbacks, Handle) -> c_int;
    set_serial "OTF2_Archive_SetSerialCollectiveCallbacks" (Handle) -> c_int;
    open_events "OTF2_Archive_OpenEvtFiles" (Handle) -> c_int;
    close_events "OTF2_Archive_CloseEvtFiles" (Handle) -> c_int;
    open_local "OTF2_Archive_OpenDefFiles" (Handle) -> c_int;
    close_local "OTF2_Archive_CloseDefFiles" (Handle) -> c_int;
    events "OTF2_Archive_GetEvtWriter" (Handle, u64) -> Handle;
    end_events "OTF2_Archive_CloseEvtWriter" (Handle, Handle) -> c_int;
    local "OTF2_Archive_GetDefWriter" (Handle, u64) -> Handle;
    end_local "OTF2_Archive_CloseDefWriter" (Handle, Handle) -> c_int;
    definitions "OTF2_Archive_GetGlobalDefWriter" (Handle) -> Handle;
    end_definitions "OTF2_Archive_CloseGlobalDefWriter" (Handle, Handle) -> c_int;
    close "OTF2_Archive_Close" (Handle) -> c_int;
    enter "OTF2_EvtWriter_Enter" (Handle, Handle, u64, u32) -> c_int;
    leave "OTF2_EvtWriter_Leave" (Handle, Handle, u64, u32) -> c_int;
    send "OTF2_EvtWriter_MpiSend" (Handle, Handle, u64, u32, u32, u32, u64) -> c_int;
    receive "OTF2_EvtWriter_MpiRecv" (Handle, Handle, u64, u32, u32, u32, u64) -> c_int;
    members "OTF2_GlobalDefWriter_WriteGroup"
        (Handle, u32, u32, u8, u8, u32, u32, *const u64) -> c_int;
    communicator "OTF2_GlobalDefWriter_WriteComm" (Handle, u32, u32, u32, u32, u32) -> c_int;
    clock "OTF2_GlobalDefWriter_WriteClockProperties" (Handle, u64, u64, u64, u64) -> c_int;
    string "OTF2_GlobalDefWriter_WriteString" (Handle, u32, *const c_char) -> c_int;
    region "OTF2_GlobalDefWriter_WriteRegion"
        (Handle, u32, u32, u32, u32, u8, u8, u32, u32, u32, u32) -> c_int;
    node "OTF2_GlobalDefWriter_WriteSystemTreeNode" (Handle, u32, u32, u32, u32) -> c_int;
    group "OTF2_GlobalDefWriter_WriteLocationGroup" (Handle, u32, u32, u8, u32, u32) -> c_int;
    location "OTF2_GlobalDefWriter_WriteLocation" (Handle, u64, u32, u8, u64, u32) -> c_int;
    describe "OTF2_Error_GetDescription" (c_int) -> *const c_char;
}

impl Library {
    /// Loads the library.
    ///
    /// # Errors
    /// [`Otf2Error::NoLibrary`].
    pub(crate) fn load() -> Result<Self, Otf2Error> {
        Self::load_named(std::env::var(VARIABLE).ok())
    }

    /// Loads the library from this file, or from where the system looks.
    fn load_named(file: Option<String>) -> Result<Self, Otf2Error> {
        if let Some(file) = file {
            return Self::load_file(&file).map_err(|why| Otf2Error::WrongLibrary { file, why });
        }
        let mut first = None;
        for name in NAMES {
            match Self::load_file(name) {
                Ok(library) => return Ok(library),
                Err(why) => first = first.or(Some(why)),
            }
        }
        Err(Otf2Error::NoLibrary(first.unwrap_or_default()))
    }

    /// Loads a file, or returns the reason of the system's loader why not.
    fn load_file(name: &str) -> Result<Self, String> {
        // SAFETY: the initialisers of OTF2 have no preconditions. A file that an operator names is
        // trusted like this program.
        let object = unsafe { SharedObject::new(name) };
        object.and_then(Self::from_object).map_err(|error| match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string(),
        })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), Otf2Error> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function accepts every code, and returns a text of the library.
        let text = unsafe { (self.describe)(code) };
        // SAFETY: the text ends with a zero and is never freed.
        let why = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
        let why = why.map_or_else(|| code.to_string(), |text| text.to_string_lossy().into_owned());
        Err(Otf2Error::Call { call, why })
    }
}

/// The definition of a location: its number is its place in the list.
pub(super) struct LocationDefinition {
    pub(super) name: u32,
    pub(super) group: u32,
    pub(super) events: u64,
}

/// An archive that is being written.
pub(super) struct Archive<'a> {
    library: &'a Library,
    handle: Handle,
    is_closed: bool,
}

impl<'a> Archive<'a> {
    /// Creates the archive `traces` in a folder.
    pub(super) fn create(library: &'a Library, folder: &CStr) -> Result<Self, Otf2Error> {
        let (substrate, compression) = (SUBSTRATE_POSIX, COMPRESSION_NONE);
        // SAFETY: both texts end with a zero, and the library copies them.
        let handle = unsafe {
            (library.open)(
                folder.as_ptr(),
                c"traces".as_ptr(),
                FILE_MODE_WRITE,
                CHUNK_EVENTS,
                CHUNK_DEFINITIONS,
                substrate,
                compression,
            )
        };
        let archive =
            Self { library, handle: non_null("OTF2_Archive_Open", handle)?, is_closed: false };
        // SAFETY: the handle is open, and the callbacks are static.
        let set = unsafe { (library.set_flush)(handle, &raw const FLUSH_CALLBACKS, null_mut()) };
        library.check("OTF2_Archive_SetFlushCallbacks", set)?;
        // SAFETY: the handle is open.
        let set = unsafe { (library.set_serial)(handle) };
        library.check("OTF2_Archive_SetSerialCollectiveCallbacks", set)?;
        // SAFETY: the handle is open and has its callbacks.
        library.check("OTF2_Archive_OpenEvtFiles", unsafe { (library.open_events)(handle) })?;
        Ok(archive)
    }

    /// Writes the events of a location, whose times do not decrease.
    pub(super) fn write_events(
        &self,
        location: u64,
        events: &[LocationEvent],
        strings: &mut StringTable,
    ) -> Result<(), Otf2Error> {
        let library = self.library;
        // SAFETY: the archive is open for events.
        let writer = unsafe { (library.events)(self.handle, location) };
        let writer = non_null("OTF2_Archive_GetEvtWriter", writer)?;
        for event in events {
            let (at, none) = (event.at, null_mut());
            let written = match &event.action {
                LocationAction::Enter(region) => {
                    // SAFETY: the writer is open; no attributes are a null pointer.
                    unsafe { (library.enter)(writer, none, at, strings.region(region)) }
                }
                LocationAction::Leave(region) => {
                    // SAFETY: as above.
                    unsafe { (library.leave)(writer, none, at, strings.region(region)) }
                }
                LocationAction::Send(to, size) => {
                    // SAFETY: as above; communicator 0 has all locations.
                    unsafe { (library.send)(writer, none, at, *to, 0, size.tag, size.bytes) }
                }
                LocationAction::Receive(from, size) => {
                    // SAFETY: as above.
                    unsafe { (library.receive)(writer, none, at, *from, 0, size.tag, size.bytes) }
                }
            };
            library.check("OTF2_EvtWriter", written)?;
        }
        // SAFETY: the writer belongs to this archive, and is not used any more.
        let closed = unsafe { (library.end_events)(self.handle, writer) };
        library.check("OTF2_Archive_CloseEvtWriter", closed)
    }

    /// Writes all definitions, after the events.
    pub(super) fn write_definitions(
        &self,
        (first, last): (u64, u64),
        strings: &StringTable,
        groups: &[u32],
        locations: &[LocationDefinition],
    ) -> Result<(), Otf2Error> {
        self.close_event_files(locations.len() as u64)?;
        let library = self.library;
        // SAFETY: the archive is open.
        let writer = unsafe { (library.definitions)(self.handle) };
        let writer = non_null("OTF2_Archive_GetGlobalDefWriter", writer)?;
        let check = |code| library.check("OTF2_GlobalDefWriter", code);
        let ticks = last.saturating_sub(first).saturating_add(1);
        // SAFETY: the writer is open.
        check(unsafe { (library.clock)(writer, NANOSECONDS, first, ticks, first) })?;
        for (id, text) in strings.texts() {
            let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
            // SAFETY: the text ends with a zero, and the library copies it.
            check(unsafe { (library.string)(writer, id, text.as_ptr()) })?;
        }
        for (region, name) in strings.regions() {
            let (role, paradigm) = (ROLE_FUNCTION, PARADIGM_USER);
            // SAFETY: the writer is open; the name is a string of the archive.
            check(unsafe {
                (library.region)(
                    writer, region, name, name, UNDEFINED, role, paradigm, 0, UNDEFINED, 0, 0,
                )
            })?;
        }
        let root = groups.first().copied().unwrap_or(UNDEFINED);
        // SAFETY: the writer is open; a root has no parent.
        check(unsafe { (library.node)(writer, 0, root, root, UNDEFINED) })?;
        for (number, name) in (0_u32..).zip(groups) {
            // SAFETY: the writer is open; node 0 is defined.
            check(unsafe { (library.group)(writer, number, *name, GROUP_PROCESS, 0, UNDEFINED) })?;
        }
        for (number, of) in (0_u64..).zip(locations) {
            let LocationDefinition { name, group, events } = *of;
            // SAFETY: the writer is open; the group is defined.
            check(unsafe {
                (library.location)(writer, number, name, LOCATION_THREAD, events, group)
            })?;
        }
        self.write_communicator(writer, root, locations.len())?;
        // SAFETY: the writer belongs to this archive, and is not used any more.
        check(unsafe { (library.end_definitions)(self.handle, writer) })
    }

    /// Defines communicator 0: a message names its other end by the number of the location.
    fn write_communicator(
        &self,
        writer: Handle,
        name: u32,
        locations: usize,
    ) -> Result<(), Otf2Error> {
        let library = self.library;
        let members: Vec<u64> = (0..locations as u64).collect();
        let (number, first) = (u32::try_from(locations).unwrap_or(u32::MAX), members.as_ptr());
        for (group, kind) in [(0, GROUP_COMM_LOCATIONS), (1, GROUP_COMM)] {
            // SAFETY: the writer is open, and `members` has this number of elements, which the
            // library copies.
            let written = unsafe {
                (library.members)(writer, group, name, kind, PARADIGM_MPI, 0, number, first)
            };
            library.check("OTF2_GlobalDefWriter_WriteGroup", written)?;
        }
        // SAFETY: the writer is open, and group 1 is defined.
        let written = unsafe { (library.communicator)(writer, 0, name, 1, UNDEFINED, 0) };
        library.check("OTF2_GlobalDefWriter_WriteComm", written)
    }

    /// Ends the events, and writes the file of local definitions that a reader expects for each
    /// location.
    fn close_event_files(&self, locations: u64) -> Result<(), Otf2Error> {
        let library = self.library;
        // SAFETY: all writers of events are closed.
        let closed = unsafe { (library.close_events)(self.handle) };
        library.check("OTF2_Archive_CloseEvtFiles", closed)?;
        // SAFETY: the archive is open.
        library.check("OTF2_Archive_OpenDefFiles", unsafe { (library.open_local)(self.handle) })?;
        for location in 0..locations {
            // SAFETY: the archive is open for local definitions.
            let writer = unsafe { (library.local)(self.handle, location) };
            let writer = non_null("OTF2_Archive_GetDefWriter", writer)?;
            // SAFETY: the writer belongs to this archive, and is not used any more.
            let closed = unsafe { (library.end_local)(self.handle, writer) };
            library.check("OTF2_Archive_CloseDefWriter", closed)?;
        }
        // SAFETY: all writers of local definitions are closed.
        library.check("OTF2_Archive_CloseDefFiles", unsafe { (library.close_local)(self.handle) })
    }

    /// Completes the archive.
    pub(super) fn close(mut self) -> Result<(), Otf2Error> {
        self.is_closed = true;
        // SAFETY: all writers are closed, and the handle is not used any more.
        self.library.check("OTF2_Archive_Close", unsafe { (self.library.close)(self.handle) })
    }
}

impl Drop for Archive<'_> {
    fn drop(&mut self) {
        if !self.is_closed {
            // SAFETY: the handle is open, and not used any more. The error that led here is reported.
            let _ = unsafe { (self.library.close)(self.handle) };
        }
    }
}

fn non_null(call: &'static str, handle: Handle) -> Result<Handle, Otf2Error> {
    let why = || "no memory, or no permission".to_owned();
    (!handle.is_null()).then_some(handle).ok_or_else(|| Otf2Error::Call { call, why: why() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_library_is_named_with_the_reason() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "no library").unwrap();
        let path = file.path().display().to_string();
        let Err(error) = Library::load_named(Some(path.clone())) else { panic!("not refused") };
        let text = error.to_string();
        assert!(text.starts_with(&format!("FLORIN_OTF2 = {path} is no OTF2 library (")), "{text}");
        assert!(!text.contains("dlopen failed") && error.code() == "OTF2_MISSING", "{text}");
    }
}
