# No home directory is said.
FROM talaria-test:base
ENV HOME=
