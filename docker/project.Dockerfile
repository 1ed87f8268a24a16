# A project with tests, as a checkout that an agent works on.
FROM talaria-test:base
RUN ln -s python3 /usr/bin/python
COPY project /project
