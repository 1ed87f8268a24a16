# No Python at all.
FROM talaria-test:base
RUN rm -f /usr/bin/python3*
