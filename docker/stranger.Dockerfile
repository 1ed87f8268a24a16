# A user that the image's passwd does not know.
FROM talaria-test:base
USER 12345
