pub(crate) mod codec;
mod files;
pub(crate) mod memeater;
pub(crate) mod mount;
pub(crate) mod run;
pub(crate) mod store;
pub(crate) mod train;
pub(crate) mod web;
