pub(crate) mod client;
