# Credentials in the image's environment, and words that only look like some.
FROM talaria-test:base
ENV API_KEY=k3y-of-the-image-0123456789 POSTGRES_PASSWORD=postgres DATABASE_URL=postgres://db/shop PLAIN=visible
