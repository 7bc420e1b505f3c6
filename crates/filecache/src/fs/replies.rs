//! Answers to the kernel.

use std::io;
use std::time::Duration;

use fuser::{FileAttr, FileType, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyWrite, ReplyXattr};

use super::names::Named;
use super::xattrs::Answer;

/// How long the kernel may answer for a file by itself before it asks again. What changes behind
/// the mount is to be seen within a second: half of it for this, half for finding open files
/// changed (`watch`).
const VALID: Duration = Duration::from_millis(500);

/// How long these attributes are valid. FIFOs, sockets and devices the kernel opens without a
/// request to the server, so it has to know at once who may.
pub(super) fn valid_for(attributes: &FileAttr) -> &'static Duration {
    match attributes.kind {
        FileType::Directory | FileType::RegularFile | FileType::Symlink => &VALID,
        FileType::NamedPipe | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {
            &Duration::ZERO
        }
    }
}

pub(super) fn reply_entry(reply: ReplyEntry, result: io::Result<Named>) {
    match result {
        Ok(Named { attributes, generation, .. }) => {
            reply.entry_with_ttls(valid_for(&attributes), &VALID, &attributes, generation);
        }
        Err(error) => reply.error(error.into()),
    }
}

pub(super) fn reply_empty(reply: ReplyEmpty, result: io::Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

pub(super) fn reply_attributes(reply: ReplyAttr, result: io::Result<FileAttr>) {
    match result {
        Ok(attributes) => reply.attr(valid_for(&attributes), &attributes),
        Err(error) => reply.error(error.into()),
    }
}

pub(super) fn reply_xattr(reply: ReplyXattr, result: io::Result<Answer>) {
    match result {
        Ok(Answer::Size(size)) => reply.size(size),
        Ok(Answer::Data(data)) => reply.data(&data),
        Err(error) => reply.error(error.into()),
    }
}

pub(super) fn reply_written(reply: ReplyWrite, result: io::Result<u32>) {
    match result {
        Ok(count) => reply.written(count),
        Err(error) => reply.error(error.into()),
    }
}
