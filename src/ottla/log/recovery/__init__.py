"""Parts of recovery that work on files: complete interrupted operations, report damage that is found."""
