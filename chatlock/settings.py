"""Settings of the service and its workers, from CHATLOCK_* variables and .env; read at the edges only."""

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What `chatlock poller` and `chatlock worker` read.  The library itself takes plain arguments."""

    model_config = SettingsConfigDict(env_prefix="CHATLOCK_", env_file=".env", extra="ignore", frozen=True)

    url: SecretStr = Field(description="The database as a SQLAlchemy URL.")
    chat: str | None = Field(
        None, description="Where the chat object is, as module:name, for turns run by this process."
    )
    dispatch: Literal["inline", "rq", "http"] = Field("inline", description="Who runs due turns.")
    redis_url: SecretStr | None = Field(None, description="Redis or Valkey, for dispatch=rq and wake=redis.")
    wake: Literal["auto", "redis", "postgres", "polling"] = Field(
        "auto", description="How wakes travel; auto: redis where redis_url is set, else polling."
    )
    queue: str = Field("chatlock", min_length=1, max_length=100, description="The RQ queue of dispatch=rq.")
    http_url: str | None = Field(None, description="Where dispatch=http posts due threads.")
    http_secret: SecretStr | None = Field(None, description="Signs what dispatch=http posts.")
    sweep_ms: int = Field(1_000, ge=100, le=60_000, description="How often to sweep.")
    beat_ms: int = Field(3_000, ge=100, description="How often a live turn beats.")
    lease_ms: int = Field(10_000, ge=500, description="How long a turn may be silent.")
    dispatch_lease_ms: int = Field(
        15_000, ge=1_000, le=600_000, description="How long a dispatched thread is left to its worker."
    )
    turns_max: int = Field(16, ge=1, le=1_000, description="Turns that dispatch=inline runs at once.")
    tenant_turns_max: int | None = Field(
        None, ge=1, description="Turns of one tenant that run at once; none: any number."
    )
    drain_ms: int = Field(20_000, ge=0, description="How long SIGTERM lets running turns end.")
    pool_size: int = Field(5, ge=1, le=100, description="Database connections.")
    pooler: Literal["transaction"] | None = Field(None, description="Set behind a transaction pooler.")
    host: str = Field("127.0.0.1", description="Where /livez, /readyz and /metrics are served.")
    port: int = Field(8008, ge=0, le=65_535, description="Their port; 0 = any free one.")
    ui_token: SecretStr | None = Field(
        None, min_length=16, description="Opens the web view at /ui; none: there is none."
    )

    @model_validator(mode="after")
    def _related(self) -> Self:
        if 3 * self.beat_ms > self.lease_ms:
            raise ValueError("three beats must fit in a lease: lease_ms >= 3 * beat_ms")
        if self.dispatch == "inline" and self.chat is None:
            raise ValueError("dispatch=inline runs turns here: set chat=module:name")
        if self.dispatch == "rq" and self.redis_url is None:
            raise ValueError("dispatch=rq needs redis_url")
        if self.dispatch == "http" and (self.http_url is None or self.http_secret is None):
            raise ValueError("dispatch=http needs http_url and http_secret")
        if self.http_url is not None and not self.http_url.startswith(("http://", "https://")):
            raise ValueError("http_url must begin with http:// or https://")
        if self.wake == "redis" and self.redis_url is None:
            raise ValueError("wake=redis needs redis_url")
        if self.wake == "postgres" and self.pooler is not None:
            raise ValueError("wake=postgres listens in a session, which pooler=transaction has not: redis or polling")
        return self
