//! Images of a group's state: the file in which one is received, before it replaces the state.
//!
//! An image is spooled whole before it is installed, so that a transfer that breaks off changes nothing. The file keeps
//! its final name until the machine has read and flushed it, so that a crash in between repeats the installation.
//! Sending and receiving are in `image/transfer.rs`.
//!
//! File `GROUP.image` (`GROUP.part` while it is received); integers are LE:
//! ```text
//! magic "PNDOIMG" | version u8 = 1 | chunk: the mark | chunks of the machine ... | 0xffff_ffff u32 | number of chunks u64
//! chunk: length u32 | CRC32C u32 | bytes
//! ```

mod transfer;

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pando_types::ShardId;

use crate::limits::IMAGE_CHUNK_BYTES_MAX;
use crate::machine::{ImageSource, MachineError};
use crate::mark::Mark;
pub(crate) use transfer::{ImageAnswer, ImageMessage, Receiver, SendError, Snapshotted, send};

const MAGIC: &[u8; 8] = b"PNDOIMG\x01";
const END: u32 = u32::MAX;

/// An image as the consensus library carries it.
pub(crate) enum ImageData {
    /// To be sent: reads the machine lazily.
    Source(Box<dyn ImageSource>),
    /// To be installed.
    Spooled(SpooledImage),
    /// Of a flush: the state itself is the image.
    Flushed,
}

/// A complete image file.
pub(crate) struct SpooledImage {
    path: PathBuf,
}

/// The chunks of an image file. After an error it ends.
pub(crate) struct Chunks {
    file: Option<BufReader<File>>,
    count: u64,
}

/// An image file that is being received.
pub(crate) struct SpoolWriter {
    part: PathBuf,
    whole: PathBuf,
    file: BufWriter<File>,
    chunks: u64,
}

impl SpooledImage {
    /// The image that a crash left to be installed, if there is one, and its position. Leftover parts are removed.
    pub fn pending(dir: &Path, group: ShardId) -> io::Result<Option<(Mark, SpooledImage)>> {
        match fs::remove_file(part_path(dir, group)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let image = SpooledImage { path: whole_path(dir, group) };
        let mut chunks = match image.open() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mark = chunks.next_chunk()?.ok_or_else(|| damaged("it has no mark"))?;
        let mark = Mark::decode(&mark).map_err(|e| damaged(&e))?;
        Ok(Some((mark, image)))
    }

    /// The machine's chunks, in order.
    pub fn chunks(&self) -> Result<Chunks, MachineError> {
        let mut chunks = self.open().map_err(MachineError::new)?;
        chunks.next_chunk().map_err(MachineError::new)?;
        chunks.count = 0;
        Ok(chunks)
    }

    /// Removes the file, after the machine has flushed its content.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    fn open(&self) -> io::Result<Chunks> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(&self.path)?);
        let mut magic = [0; 8];
        file.read_exact(&mut magic)?;
        if &magic != MAGIC {
            return Err(damaged("it is of another version or no image"));
        }
        Ok(Chunks { file: Some(file), count: 0 })
    }
}

impl Chunks {
    fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        let mut word = [0; 4];
        file.read_exact(&mut word)?;
        let length = u32::from_le_bytes(word);
        if length == END {
            let mut count = [0; 8];
            file.read_exact(&mut count)?;
            self.file = None;
            return if u64::from_le_bytes(count) == self.count { Ok(None) } else { Err(damaged("chunks are missing")) };
        }
        if length as usize > IMAGE_CHUNK_BYTES_MAX {
            return Err(damaged("a chunk is too long"));
        }
        file.read_exact(&mut word)?;
        let mut chunk = vec![0; length as usize];
        file.read_exact(&mut chunk)?;
        if crc32c::crc32c(&chunk) != u32::from_le_bytes(word) {
            return Err(damaged("a checksum differs"));
        }
        self.count += 1;
        Ok(Some(Bytes::from(chunk)))
    }
}

impl Iterator for Chunks {
    type Item = Result<Bytes, MachineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.next_chunk();
        if item.is_err() {
            self.file = None;
        }
        item.map_err(MachineError::new).transpose()
    }
}

impl SpoolWriter {
    /// Starts a file for an image at `mark`, in place of any unfinished one.
    pub fn create(dir: &Path, group: ShardId, mark: &Mark) -> io::Result<SpoolWriter> {
        let part = part_path(dir, group);
        let file = BufWriter::with_capacity(1 << 20, File::create(&part)?);
        let mut writer = SpoolWriter { part, whole: whole_path(dir, group), file, chunks: 0 };
        writer.file.write_all(MAGIC)?;
        writer.push(&mark.encode())?;
        writer.chunks = 0;
        Ok(writer)
    }

    /// Appends a chunk.
    pub fn push(&mut self, chunk: &[u8]) -> io::Result<()> {
        if chunk.len() > IMAGE_CHUNK_BYTES_MAX {
            return Err(io::Error::other(format!("an image chunk of {} bytes is too long", chunk.len())));
        }
        let length = u32::try_from(chunk.len()).expect("an image chunk is below 4 GiB");
        self.file.write_all(&length.to_le_bytes())?;
        self.file.write_all(&crc32c::crc32c(chunk).to_le_bytes())?;
        self.file.write_all(chunk)?;
        self.chunks += 1;
        Ok(())
    }

    /// Number of chunks so far.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Makes the file durable under its final name.
    pub fn finish(mut self) -> io::Result<SpooledImage> {
        self.file.write_all(&END.to_le_bytes())?;
        self.file.write_all(&self.chunks.to_le_bytes())?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(&self.part, &self.whole)?;
        if let Some(dir) = self.whole.parent() {
            File::open(dir)?.sync_all()?;
        }
        Ok(SpooledImage { path: self.whole })
    }
}

fn part_path(dir: &Path, group: ShardId) -> PathBuf {
    dir.join(format!("{group}.part"))
}

fn whole_path(dir: &Path, group: ShardId) -> PathBuf {
    dir.join(format!("{group}.image"))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged image file: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: ShardId = ShardId(7);

    fn spool(dir: &Path) -> SpooledImage {
        let mut writer = SpoolWriter::create(dir, GROUP, &Mark::default()).unwrap();
        writer.push(b"ab").unwrap();
        writer.push(b"").unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn golden_bytes() {
        let dir = tempfile::tempdir().unwrap();
        spool(dir.path());
        let mark_crc = crc32c::crc32c(&[1, 0, 0, 0, 0]).to_le_bytes();
        let golden = [
            b"PNDOIMG\x01".as_slice(),
            &[5, 0, 0, 0],
            &mark_crc,
            &[1, 0, 0, 0, 0],
            &[2, 0, 0, 0],
            &[0x36, 0x29, 0xa2, 0xe2], // CRC32C of "ab"
            b"ab",
            &[0, 0, 0, 0, 0, 0, 0, 0],
            &[0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(fs::read(dir.path().join("7.image")).unwrap(), golden);
    }

    #[test]
    fn chunks_come_back_as_they_were_cut_and_only_when_finished() {
        let dir = tempfile::tempdir().unwrap();
        SpoolWriter::create(dir.path(), GROUP, &Mark::default()).unwrap().push(b"x").unwrap();
        assert!(SpooledImage::pending(dir.path(), GROUP).unwrap().is_none(), "an unfinished file is no image");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "and is removed");

        spool(dir.path());
        let (mark, image) = SpooledImage::pending(dir.path(), GROUP).unwrap().unwrap();
        assert_eq!(mark, Mark::default());
        let chunks: Vec<_> = image.chunks().unwrap().map(|chunk| chunk.unwrap()).collect();
        assert_eq!(chunks, [&b"ab"[..], b""]);
    }

    #[test]
    fn damage_anywhere_is_an_error_and_never_a_shorter_image() {
        let dir = tempfile::tempdir().unwrap();
        let image = spool(dir.path());
        let whole = fs::read(&image.path).unwrap();
        let read = |bytes: &[u8]| {
            fs::write(&image.path, bytes).unwrap();
            image.chunks().is_ok_and(|mut chunks| chunks.all(|chunk| chunk.is_ok()))
        };
        assert!(read(&whole));
        for cut in 0..whole.len() {
            assert!(!read(&whole[..cut]), "cut at {cut}");
        }
        for flip in 0..whole.len() {
            let mut bad = whole.clone();
            bad[flip] ^= 1;
            assert!(!read(&bad), "bit of byte {flip}");
        }
    }
}
